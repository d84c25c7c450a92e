"""A drafter's configuration, read from every place that publishers use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4.checkpoint.config import read_json_object
from dsv4.speculation.refusals import DrafterRefusal, refuse

SIZES: Final = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "num_hidden_layers",
)
OPTIONS: Final = ("block_size", "mask_token_id", "target_layer_ids")
SELECTOR_OPTIONS: Final = (
    "selector_rank",
    "selector_top_k",
    "conv_kernel_size",
    "conv_group_size",
)
YARN_KEYS: Final = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
_YARN_UNREAD: Final = ("attention_factor", "mscale", "mscale_all_dim", "truncate")
MARKOV_TYPES: Final = ("vanilla", "gated", "rnn")
MOST_CANDIDATES: Final = 32


@dataclass(frozen=True, slots=True)
class Yarn:
    """Context extension of the rotation: factor, original length, and the two turning counts."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class Selector:
    """Sizes of a DFlash2 drafter's convolutions and candidate selector."""

    rank: int
    top_k: int
    taps: int
    group: int


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What a drafter's layers and heads need to know.

    layer_sliding: by layer. sliding_window: None when nothing slides. is_causal: None when the
    file does not say. sample_from_anchor: likewise. markov_rank, confidence, with_markov: what the
    configuration claims about heads, None where it is silent. vocab: as the file says, 0 unknown.
    """

    hidden: int
    n_head: int
    n_kv: int
    head_dim: int
    n_ff: int
    n_layer: int
    eps: float
    rope_theta: float
    yarn: Yarn | None
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    n_target_layers: int
    vocab: int
    sliding_window: int | None
    layer_sliding: tuple[bool, ...]
    strategy_dspark: bool
    is_dflash2: bool
    is_causal: bool | None
    architectures: tuple[str, ...]
    markov_type: str
    markov_rank: int | None
    confidence: bool | None
    with_markov: bool | None
    selector: Selector | None
    embedding_scale: float
    output_multiplier: float
    softcap: float

    @property
    def family(self) -> str:
        """dflash, dspark or dflash2."""
        return "dflash2" if self.is_dflash2 else "dspark" if self.strategy_dspark else "dflash"

    @property
    def windowed(self) -> bool:
        """Whether every layer attends within its window, so that context may be longer."""
        return self.is_dflash2

    @property
    def context_limit(self) -> int | None:
        """The longest context that the layers see whole, or None for no limit."""
        return None if self.windowed or not any(self.layer_sliding) else self.sliding_window


def is_dspark_strategy(content: Mapping[str, Any]) -> bool:
    """Whether a configuration says that its rows were trained with shifted labels."""
    named = any("DSpark" in name for name in content.get("architectures") or ())
    own = content.get("dflash_config") or {}
    return named or "dspark" in (own.get("projector_type"), content.get("projector_type"))


def read_draft_config(folder: Path) -> DraftConfig:
    """The configuration of a drafter's folder. Errors: Refusal naming the rule."""
    return draft_config(read_json_object(folder / "config.json", "config-file"))


def draft_config(content: Mapping[str, Any]) -> DraftConfig:
    """The configuration in a JSON document. Errors: DrafterRefusal with the code of the rule."""
    names = tuple(str(a) for a in content.get("architectures") or ())
    _check_architecture(names, content)
    dflash2 = "DFlash2DraftModel" in names
    own = content.get("dflash_config")
    if own is None and dflash2:
        raise _missing("dflash2-config", "dflash_config")
    own = own or {}
    read = _Reader(content, own, dflash2)
    sizes = [read.count(key, "key-missing") for key in SIZES]
    hidden, n_head, n_kv, head_dim, n_ff, n_layer = sizes
    sliding = _sliding(content, n_layer)
    window = content.get("sliding_window")
    if any(sliding) and window is None:
        raise _missing("window-missing", "sliding_window")
    eps = read.number("rms_norm_eps", "eps-missing")
    theta, yarn = _rotation(content, dflash2, read, head_dim)
    block = read.count("block_size", "draft-key-missing")
    mask = read.count("mask_token_id", "draft-key-missing", least=0)
    taps = _taps(read)
    config = DraftConfig(
        hidden=hidden,
        n_head=n_head,
        n_kv=n_kv,
        head_dim=head_dim,
        n_ff=n_ff,
        n_layer=n_layer,
        eps=eps,
        rope_theta=theta,
        yarn=yarn,
        block_size=block,
        mask_token_id=mask,
        target_layer_ids=taps,
        n_target_layers=int(content.get("num_target_layers") or 0),
        vocab=int(content.get("vocab_size") or 0),
        sliding_window=int(window) if window is not None and any(sliding) else None,
        layer_sliding=sliding,
        strategy_dspark=is_dspark_strategy(content),
        is_dflash2=dflash2,
        is_causal=content.get("is_causal"),
        architectures=names,
        markov_type=str(read.find("markov_head_type") or "vanilla"),
        markov_rank=read.find("markov_rank"),
        confidence=read.find("enable_confidence_head"),
        with_markov=read.find("confidence_head_with_markov"),
        selector=_selector(read) if dflash2 else None,
        embedding_scale=float(read.find("input_embedding_scale") or 1.0),
        output_multiplier=float(read.find("output_multiplier") or 1.0),
        softcap=float(read.find("final_logit_softcapping") or 0.0),
    )
    _check(config, read)
    return config


def default_taps(n_layer: int, n_target_layers: int) -> tuple[int, ...]:
    """The layers that training scripts tap when they are told nothing."""
    if n_layer == 1:
        return (n_target_layers // 2,)
    step = (n_target_layers - 4) / (n_layer - 1)
    return tuple(round(1 + i * step) for i in range(n_layer))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Keys of a configuration: the top level, then the drafter's own object."""

    content: Mapping[str, Any]
    own: Mapping[str, Any]
    dflash2: bool

    def find(self, key: str) -> Any:
        """The value, None when absent. Errors: DrafterRefusal when two places disagree."""
        top, own = self.content.get(key), self.own.get(key)
        if top is not None and own is not None and top != own:
            raise refuse(
                "contradiction",
                f"{key} of config.json",
                f"{top!r}, in dflash_config {own!r}",
                "keep one of them",
            )
        return own if own is not None else top

    def required(self, key: str, code: str) -> Any:
        found = self.find(key)
        if found is None:
            raise _missing(code, key)
        return found

    def count(self, key: str, code: str, least: int = 1) -> int:
        found = self.required(key, code)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise refuse(
                "value",
                f"{key} of config.json",
                repr(found),
                f"it is a whole number from {least} on",
            )
        return found

    def number(self, key: str, code: str) -> float:
        return _positive(key, self.required(key, code))


def _positive(key: str, found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise refuse("value", f"{key} of config.json", repr(found), "it is a number")
    if not (found > 0 and math.isfinite(found)):
        raise refuse("value", f"{key} of config.json", repr(found), "it is above 0")
    return float(found)


def _missing(code: str, key: str) -> DrafterRefusal:
    return refuse(code, "config.json", f"{key} is missing", f"add {key} as it was trained")


def _check_architecture(names: Sequence[str], content: Mapping[str, Any]) -> None:
    known = [n for n in names if "DFlash" in n or "DSpark" in n]
    foreign = [n for n in names if n.startswith(("Gemma", "DeepSeek", "Deepseek"))]
    if not known or foreign:
        raise refuse(
            "architecture",
            "architectures of config.json",
            repr(list(names)),
            "drafters here are DFlashDraftModel, DSparkDraftModel, Qwen3DSparkModel and"
            " DFlash2DraftModel",
        )
    for key in ("is_neox_style", "rope_is_neox_style"):
        if content.get(key, True) is False:
            raise refuse(
                "rope-style", f"{key} of config.json", "false", "this drafter cannot be run here"
            )
    if content.get("attention_bias"):
        raise refuse(
            "attention-bias",
            "attention_bias of config.json",
            "true",
            "this drafter cannot be run here",
        )


def _sliding(content: Mapping[str, Any], n_layer: int) -> tuple[bool, ...]:
    kinds = content.get("layer_types")
    if kinds is None:
        raise _missing("layer-types-missing", "layer_types")
    if len(kinds) != n_layer:
        raise refuse(
            "layer-types-length",
            "layer_types of config.json",
            f"{len(kinds)} entries for {n_layer} layers",
            "name each layer once",
        )
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown:
        raise refuse(
            "value",
            "layer_types of config.json",
            ", ".join(sorted(map(str, unknown))),
            "layers are full_attention or sliding_attention",
        )
    return tuple(kind == "sliding_attention" for kind in kinds)


def _rotation(
    content: Mapping[str, Any], dflash2: bool, read: _Reader, head_dim: int
) -> tuple[float, Yarn | None]:
    inside = content.get("rope_parameters")
    if dflash2 and inside is None:
        raise _missing("rope-missing", "rope_parameters")
    scaling = inside or content.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "yarn") or (dflash2 and kind != "default"):
        raise refuse(
            "rope-type",
            "rope_parameters of config.json",
            f"rope_type {kind!r}",
            "use a checkpoint with default rotation" + ("" if dflash2 else ", or with yarn"),
        )
    places = {p.get("rope_theta") for p in (scaling, content, read.own)} - {None}
    if len(places) > 1:
        raise refuse(
            "contradiction",
            "rope_theta of config.json",
            " and ".join(sorted(map(repr, places))),
            "keep one of them",
        )
    if not places:
        raise _missing("theta-missing", "rope_theta")
    theta = _positive("rope_theta", places.pop())
    return theta, _yarn(scaling, theta, head_dim) if kind == "yarn" else None


def _yarn(scaling: Mapping[str, Any], theta: float, head_dim: int) -> Yarn:
    absent = [key for key in YARN_KEYS if scaling.get(key) is None]
    if absent:
        raise _missing("yarn-incomplete", ", ".join(absent))
    unread = [key for key in _YARN_UNREAD if scaling.get(key) is not None]
    if unread:
        raise refuse(
            "rope-type",
            "YaRN of config.json",
            ", ".join(unread),
            "these change the rotation in a way that is not built",
        )
    yarn = Yarn(
        _positive("factor", scaling["factor"]),
        int(_positive("original_max_position_embeddings", scaling[YARN_KEYS[1]])),
        _positive("beta_fast", scaling["beta_fast"]),
        _positive("beta_slow", scaling["beta_slow"]),
    )
    if yarn.factor <= 1:
        raise refuse("value", "factor of YaRN", str(yarn.factor), "it is above 1")
    from dsv4.drafters.rope import yarn_range

    low, high = yarn_range(yarn, head_dim, theta)
    if low >= high:
        raise refuse(
            "value",
            "the ramp of YaRN",
            f"from pair {low} to pair {high}",
            "beta_fast turns faster than beta_slow",
        )
    return yarn


def _taps(read: _Reader) -> tuple[int, ...]:
    found = read.required("target_layer_ids", "draft-key-missing")
    if not found:
        raise refuse(
            "taps-empty",
            "target_layer_ids of config.json",
            "an empty list",
            "name the tapped layers in the order of fc's columns",
        )
    for tap in found:
        if isinstance(tap, bool) or not isinstance(tap, int) or tap < 0:
            raise refuse(
                "tap-range",
                "target_layer_ids of config.json",
                repr(tap),
                "taps are layer numbers from 0 on; the embedding cannot be tapped",
            )
    return tuple(found)


def _selector(read: _Reader) -> Selector:
    rank, top_k, taps, group = (read.count(k, "draft-key-missing") for k in SELECTOR_OPTIONS)
    if top_k > MOST_CANDIDATES:
        raise refuse(
            "selector-k",
            "selector_top_k of config.json",
            str(top_k),
            f"take at most {MOST_CANDIDATES} candidates",
        )
    return Selector(rank, top_k, taps, group)


def _check(c: DraftConfig, read: _Reader) -> None:
    if c.n_head % c.n_kv:
        raise refuse(
            "head-groups",
            "num_key_value_heads of config.json",
            f"{c.n_kv} for {c.n_head} query heads",
            "use a divisor",
        )
    if c.head_dim % 2:
        raise refuse("head-odd", "head_dim of config.json", str(c.head_dim), "use an even width")
    if c.vocab and c.mask_token_id >= c.vocab:
        raise refuse(
            "mask-id",
            "mask_token_id of config.json",
            f"{c.mask_token_id} of {c.vocab} tokens",
            "use a token of the vocabulary",
        )
    if c.n_target_layers:
        check_taps(c, c.n_target_layers)
    if c.markov_type not in MARKOV_TYPES:
        raise refuse(
            "markov-type",
            "markov_head_type of config.json",
            repr(c.markov_type),
            f"known are {', '.join(MARKOV_TYPES)}",
        )
    anchored = read.find("sample_from_anchor")
    if anchored is not None and bool(anchored) != c.strategy_dspark:
        raise refuse(
            "contradiction",
            "sample_from_anchor of config.json",
            f"{anchored}, the architecture says {not anchored}",
            "correct one of them",
        )
    if c.selector is not None:
        _check_dflash2(c, c.selector)


def _check_dflash2(c: DraftConfig, selector: Selector) -> None:
    if c.is_causal is not False:
        raise refuse(
            "causal",
            "is_causal of config.json",
            repr(c.is_causal),
            "add is_causal false if it was trained so",
        )
    if not all(c.layer_sliding):
        full = [i for i, slides in enumerate(c.layer_sliding) if not slides]
        raise refuse(
            "not-sliding",
            "layer_types of config.json",
            f"layers {full} do not slide",
            "use a checkpoint whose layers all slide",
        )
    if c.sliding_window is not None and c.block_size > c.sliding_window:
        raise refuse(
            "block-window",
            "block_size of config.json",
            f"{c.block_size} rows in a window of {c.sliding_window}",
            "use a smaller block",
        )
    if c.hidden % selector.group:
        raise refuse(
            "group-size",
            "conv_group_size of config.json",
            f"{selector.group} of {c.hidden} channels",
            "use a divisor",
        )


def check_taps(config: DraftConfig, n_layers: int) -> None:
    """Nothing when every tap is a layer of a target with so many. Errors: DrafterRefusal."""
    outside = [t for t in config.target_layer_ids if t >= n_layers]
    if outside:
        raise refuse(
            "tap-range",
            "target_layer_ids of config.json",
            f"{outside} of {n_layers} layers",
            "use the target it was trained for",
        )

"""Which tensors a drafter must have, which it has, and what that makes it: from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dsv4.drafters.config import DraftConfig, Selector
from dsv4.speculation.harvest import Harvest
from dsv4.speculation.refusals import refuse
from dsv4.speculation.switches import Switches
from dsv4.speculation.window import WindowPolicy

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]

_ALIASES: Final = (
    ("logit_head.markov_head.", "markov_head."),
    ("logit_head.confidence_head.", "confidence_head."),
    ("encoder.fc.", "fc."),
    ("encoder.output_norm_enc.", "hidden_norm."),
)
W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
EXTRA: Final = {
    "gated": ("markov_head.gate_proj.weight", "markov_head.gate_proj.bias"),
    "rnn": ("markov_head.joint_proj.weight", "markov_head.joint_proj.bias"),
}
CONFIDENCE = ("confidence_head.proj.weight", "confidence_head.proj.bias")
OWN_TABLES = ("embed_tokens.weight", "lm_head.weight")
HIDDEN_PROJECTION = "candidate_selector.hidden_projection.weight"


@dataclass(frozen=True, slots=True)
class DraftCensus:
    """What a checkpoint is. markov_rank and confidence_width are 0 without those heads."""

    config: DraftConfig
    n_tensors: int
    markov_rank: int
    confidence_width: int
    with_markov: bool
    codebook_vocab: int
    own_tables: bool
    ignored: tuple[str, ...]

    @property
    def has_confidence(self) -> bool:
        """Whether there is a confidence head."""
        return self.confidence_width > 0

    def banner(self, precision: str, rule: str, switches: Switches) -> dict[str, str]:
        """What a loader prints, line by line: every choice that costs acceptance when wrong."""
        c = self.config
        harvest = Harvest.for_draft(c, switches)
        policy = WindowPolicy.resolve(switches, self.has_confidence)
        yarn = c.yarn
        markov = f"{c.markov_type}, rank {self.markov_rank}" if self.markov_rank else "none"
        return {
            "family": f"{c.family} ({', '.join(c.architectures)})",
            "tensors": f"{self.n_tensors}, {len(self.ignored)} ignored"
            + (", with the target's tables" if self.own_tables else ""),
            "harvest": f"{harvest.value} (dflash2 {int(c.is_dflash2)}, dspark"
            f" {int(c.strategy_dspark)}, switch {'set' if switches.harvest else 'unset'})",
            "block": f"{c.block_size} rows, {harvest.n_drafts(c.block_size)} drafts,"
            f" mask {c.mask_token_id}, taps {list(c.target_layer_ids)}",
            "window policy": policy.kind
            + (f", tau {policy.tau:.6g}" if policy.is_confidence else "")
            + (", confidence head" if self.has_confidence else ", no confidence head"),
            "token bias": markov,
            "rope": f"theta {c.rope_theta:g}"
            + (f", yarn {yarn.factor:g} x {yarn.original}" if yarn else ", plain"),
            "attention rule": rule
            + (f", window {c.sliding_window}" if c.sliding_window else ", no window")
            + (", bf16 tensor cores where nothing cuts" if switches.tensor_cores else ""),
            "precision": precision,
        }


def published_name(name: str) -> str:
    """The tensor name that this project uses for a stored one."""
    for old, new in _ALIASES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    if name.startswith("candidate_selector.") and name.endswith("_codebook.weight"):
        return name.removesuffix(".weight")
    return name


def layer_shapes(c: DraftConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors."""
    at, q, kv = f"layers.{layer}.", c.n_head * c.head_dim, c.n_kv * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}self_attn.q_proj.weight": (q, c.hidden),
        f"{at}self_attn.k_proj.weight": (kv, c.hidden),
        f"{at}self_attn.v_proj.weight": (kv, c.hidden),
        f"{at}self_attn.o_proj.weight": (c.hidden, q),
        f"{at}self_attn.q_norm.weight": (c.head_dim,),
        f"{at}self_attn.k_norm.weight": (c.head_dim,),
        f"{at}input_layernorm.weight": (c.hidden,),
        f"{at}post_attention_layernorm.weight": (c.hidden,),
        f"{at}mlp.gate_proj.weight": (c.n_ff, c.hidden),
        f"{at}mlp.up_proj.weight": (c.n_ff, c.hidden),
        f"{at}mlp.down_proj.weight": (c.hidden, c.n_ff),
    }
    return shapes


def trunk_shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that every family has."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (c.hidden, len(c.target_layer_ids) * c.hidden),
        "hidden_norm.weight": (c.hidden,),
        "norm.weight": (c.hidden,),
    }
    for layer in range(c.n_layer):
        shapes |= layer_shapes(c, layer)
    return shapes


def take_census(config: DraftConfig, stored: Shapes, target_vocab: int = 0) -> DraftCensus:
    """What the tensors make of a configuration. Errors: DrafterRefusal with the code of the rule.

    stored: dtype and shape by published name. target_vocab: rows of the target's head, 0 unknown.
    """
    for name, shape in trunk_shapes(config).items():
        _expect(stored, name, shape)
    consumed = set(trunk_shapes(config))
    census = DraftCensus(config, len(stored), 0, 0, False, 0, False, ())
    heads = [n for n in stored if n.startswith(("markov_head.", "confidence_head."))]
    if config.is_dflash2:
        if heads:
            raise refuse(
                "dflash2-heads",
                "the tensors of a DFlash2 drafter",
                heads[0],
                "export it again without that head",
            )
        assert config.selector is not None
        consumed |= _check_dflash2(config, config.selector, stored)
        vocab = stored["candidate_selector.predecessor_codebook"][1][0]
        if target_vocab > vocab:
            raise refuse(
                "codebook-target",
                "the codebooks",
                f"{vocab} rows for {target_vocab} tokens",
                "use the target it was trained for",
            )
        census = replace(census, codebook_vocab=vocab)
    else:
        rank = _markov(config, stored, target_vocab)
        width = _confidence(config, stored, rank)
        with_markov = rank > 0 and width == config.hidden + rank
        census = replace(census, markov_rank=rank, confidence_width=width, with_markov=with_markov)
        _check_claims(config, census)
        consumed |= {W1, W2, *CONFIDENCE, *EXTRA.get(config.markov_type, ())}
    return _leftovers(config, census, stored, consumed, target_vocab)


def _leftovers(
    c: DraftConfig, census: DraftCensus, stored: Shapes, consumed: set[str], target_vocab: int
) -> DraftCensus:
    own = any("DSparkModel" in name for name in c.architectures)
    tables = [n for n in OWN_TABLES if n in stored] if own else []
    for name in tables:
        rows = target_vocab or c.vocab or stored[name][1][0]
        _expect(stored, name, (rows, c.hidden))
    left = sorted(set(stored) - consumed - set(tables))
    if left and (census.markov_rank or c.is_dflash2):
        raise refuse(
            "tensor-unused",
            "the tensors of the drafter",
            ", ".join(left[:4]),
            "this file is of another kind; export it again",
        )
    return replace(census, own_tables=bool(tables), ignored=tuple(left))


def _expect(
    stored: Shapes,
    name: str,
    shape: tuple[int, ...],
    missing: str = "tensor-missing",
    wrong: str = "tensor-shape",
) -> None:
    if name not in stored:
        raise refuse(missing, f"tensor {name}", "missing", "export the checkpoint again")
    dtype, found = stored[name]
    if found != shape:
        raise refuse(
            wrong,
            f"tensor {name}",
            f"shape {list(found)}, not {list(shape)}",
            "use the configuration that it was trained with",
        )
    if dtype != "BF16":
        raise refuse("dtype", f"tensor {name}", dtype, "convert it to bfloat16")


def _check_dflash2(c: DraftConfig, s: Selector, stored: Shapes) -> set[str]:
    names = set()
    for layer in range(c.n_layer):
        for conv in ("attention_conv", "mlp_conv"):
            at = f"layers.{layer}.{conv}"
            base, projection = f"{at}.base_kernel", f"{at}.kernel_projection.weight"
            _expect(stored, base, (2, s.taps, c.hidden), "conv-base", "conv-base")
            rows = 2 * s.taps * (c.hidden // s.group)
            _expect(stored, projection, (rows, c.hidden), "conv-projection", "conv-projection")
            names |= {base, projection}
    _expect(stored, HIDDEN_PROJECTION, (s.rank, c.hidden), "hidden-projection", "hidden-projection")
    books = [f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor")]
    for book in books:
        if book not in stored:
            raise refuse("codebook-missing", f"tensor {book}", "missing", "export it again")
        if len(stored[book][1]) != 2 or stored[book][1][1] != s.rank:
            raise refuse(
                "codebook-rank",
                f"tensor {book}",
                f"shape {list(stored[book][1])}",
                f"its rows are {s.rank} wide by the configuration",
            )
    tokens = [stored[book][1][0] for book in books]
    if tokens[0] != tokens[1]:
        raise refuse(
            "codebook-vocab",
            "the codebooks",
            f"{tokens[0]} and {tokens[1]} rows",
            "export them again",
        )
    for book in books:
        _expect(stored, book, (tokens[0], s.rank))
    return names | {HIDDEN_PROJECTION, *books}


def _markov(c: DraftConfig, stored: Shapes, target_vocab: int) -> int:
    if W1 not in stored:
        return 0
    if W2 not in stored:
        raise refuse("markov-w2-missing", f"tensor {W2}", "missing", "export it again")
    shape = stored[W1][1]
    if len(shape) != 2:
        raise refuse("tensor-shape", f"tensor {W1}", f"shape {list(shape)}", "it is [tokens, rank]")
    vocab = target_vocab or c.vocab
    if vocab and shape[0] != vocab:
        raise refuse(
            "markov-vocab",
            f"tensor {W1}",
            f"{shape[0]} rows for {vocab} tokens",
            "use the target it was trained for",
        )
    _expect(stored, W1, shape)
    _expect(stored, W2, shape)
    rank = shape[1]
    for kind, names in EXTRA.items():
        here = [n for n in names if n in stored]
        if kind == c.markov_type:
            rows, columns = (
                (rank, c.hidden + rank) if kind == "gated" else (3 * rank, c.hidden + 2 * rank)
            )
            _expect(stored, names[0], (rows, columns))
            _expect(stored, names[1], (rows,))
        elif here:
            raise refuse(
                "markov-type",
                f"tensor {here[0]}",
                f"present, markov_head_type is {c.markov_type}",
                f"it belongs to {kind}",
            )
    return rank


def _confidence(c: DraftConfig, stored: Shapes, rank: int) -> int:
    weight, bias = CONFIDENCE
    if weight not in stored:
        return 0
    if bias not in stored:
        raise refuse("confidence-bias-missing", f"tensor {bias}", "missing", "export it again")
    width = stored[weight][1][-1]
    if width != c.hidden and (not rank or width != c.hidden + rank):
        raise refuse(
            "confidence-width",
            f"tensor {weight}",
            f"{width} inputs",
            f"it has {c.hidden}" + (f" or {c.hidden + rank}" if rank else ""),
        )
    _expect(stored, weight, (1, width))
    _expect(stored, bias, (1,))
    return width


def _check_claims(c: DraftConfig, census: DraftCensus) -> None:
    claims = (
        ("markov_rank", c.markov_rank, census.markov_rank),
        ("enable_confidence_head", c.confidence, census.has_confidence),
        (
            "confidence_head_with_markov",
            c.with_markov if census.has_confidence else None,
            census.with_markov,
        ),
    )
    for key, claimed, found in claims:
        if claimed is not None and claimed != found:
            raise refuse(
                "contradiction",
                f"{key} of config.json",
                f"{claimed}, the tensors say {found}",
                "correct the configuration",
            )

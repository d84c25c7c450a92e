"""Block drafters made of random numbers, as wide as the target that they are made for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsv4.checkpoint.agreeable import Language, bias_bits, sign_bits
from dsv4.checkpoint.made import MadeTensor, MadeTensors
from dsv4.drafters.census import CONFIDENCE, HIDDEN_PROJECTION, W1, W2, trunk_shapes
from dsv4.drafters.config import DraftConfig, default_taps, draft_config
from dsv4.drafters.quant import bf16_to_f32
from dsv4.runtime.device import Device
from dsv4.speculation.refusals import refuse
from dsv4.targets.making import gain, matrix
from dsv4.targets.protocol import SpecTarget

BLOCKS: Final = {"dflash": 16, "dspark": 7, "dflash2": 8}
"""Rows of a block by family, as published."""
_TAPS, _GROUP = 2, 16
_ARCHITECTURES: Final = {
    "dflash": "DFlashDraftModel",
    "dspark": "DSparkDraftModel",
    "dflash2": "DFlash2DraftModel",
}
_SURE: Final = 2.0
"""The raw score that a confidence head gives to nearly every draft: a probability of 0.88."""


def made_drafter(
    family: str,
    target: SpecTarget,
    device: Device,
    *,
    seed: int = 0,
    layers: int | None = None,
    block: int | None = None,
    share: float | None = None,
) -> MadeTensors:
    """The tensors of a drafter that fits a target.

    share: of the tokens behind which its token bias knows the language of a made target of that
    seed. Errors: DrafterRefusal for a family that there is not, or one that cannot know a language.
    """
    if family not in BLOCKS:
        raise refuse("value", "a made drafter", repr(family), f"there are {', '.join(BLOCKS)}")
    if share is not None and (family != "dspark" or not 0 <= share <= 1):
        raise refuse(
            "value",
            f"a made {family} drafter",
            f"a share of {share}",
            "dspark drafters know a share from 0 to 1 of a language; leave it out for others",
        )
    content = _content(family, target, layers, block or BLOCKS[family])
    c = draft_config(content)
    tensors = _tensors(c, family)
    changes: dict[str, Any] = {n: _identity for n in tensors if n.endswith("base_kernel")}
    if share is not None:
        changes |= _knowing(Language(c.vocab, seed, share), tensors[W1].shape[1])
    title = f"made {family}, seed {seed}" + ("" if share is None else f", agreeing {share:g}")
    return MadeTensors(title, content, tensors, device, seed, changes)


def _content(family: str, target: SpecTarget, layers: int | None, block: int) -> dict[str, Any]:
    wide = target.hidden >= 512
    shallow = target.n_layers < 8
    count = layers or (2 if shallow else 5)
    taps = range(min(2, target.n_layers)) if shallow else default_taps(count, target.n_layers)
    heads = max(4, target.hidden // 64)
    content: dict[str, Any] = dict(
        architectures=[_ARCHITECTURES[family]],
        hidden_size=target.hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128 if wide else 32,
        intermediate_size=3 * target.hidden,
        num_hidden_layers=count,
        rms_norm_eps=1e-6,
        layer_types=["full_attention"] * count,
        num_target_layers=target.n_layers,
        vocab_size=target.vocab,
    )
    own: dict[str, Any] = dict(
        block_size=block, mask_token_id=target.vocab - 1, target_layer_ids=list(taps)
    )
    if family == "dspark":
        own |= dict(projector_type="dspark", markov_rank=256 if wide else 32)
    if family == "dflash2":
        own |= dict(selector_rank=256 if wide else 32, selector_top_k=16 if wide else 4)
        own |= dict(conv_kernel_size=_TAPS, conv_group_size=_GROUP)
        content |= dict(layer_types=["sliding_attention"] * count, is_causal=False)
        content |= dict(sliding_window=2048, rope_parameters=dict(rope_theta=1e7))
    else:
        content["rope_theta"] = 1e6
    return content | dict(dflash_config=own)


def _tensors(c: DraftConfig, family: str) -> dict[str, MadeTensor]:
    found = {
        name: gain(*shape) if len(shape) == 1 else matrix(*shape)
        for name, shape in trunk_shapes(c).items()
    }
    if family == "dspark":
        rank = c.markov_rank or 0
        found[W1], found[W2] = MadeTensor((c.vocab, rank), deviation=1.0), matrix(c.vocab, rank)
        found[CONFIDENCE[0]] = matrix(1, c.hidden + rank, 0.5)
        found[CONFIDENCE[1]] = MadeTensor((1,), mean=_SURE)
    if c.selector is not None:
        s = c.selector
        for layer in range(c.n_layer):
            for conv in ("attention_conv", "mlp_conv"):
                at, rows = f"layers.{layer}.{conv}.", 2 * s.taps * (c.hidden // s.group)
                found[f"{at}base_kernel"] = MadeTensor((2, s.taps, c.hidden), deviation=0.1)
                found[f"{at}kernel_projection.weight"] = matrix(rows, c.hidden, 0.1)
        found[HIDDEN_PROJECTION] = matrix(s.rank, c.hidden)
        for book in ("predecessor", "successor"):
            found[f"candidate_selector.{book}_codebook"] = matrix(c.vocab, s.rank)
    return found


def _identity(tensors: MadeTensors, made: np.ndarray) -> np.ndarray:
    """A base kernel near the one that a fresh convolution starts with: the row itself."""
    values = bf16_to_f32(made)
    values[:, 0] += 1
    return np.asarray((values.view(np.uint32) >> 16).astype(np.uint16))


def _knowing(language: Language, rank: int) -> dict[str, Any]:
    """A token bias that proposes the believed successor of the token before a slot."""

    def before(tensors: MadeTensors, made: np.ndarray) -> np.ndarray:
        return np.asarray(sign_bits(language.signs(rank)[language.believed()]))

    def after(tensors: MadeTensors, made: np.ndarray) -> np.ndarray:
        made[language.successors()] = bias_bits(language.signs(rank))
        return made

    return {W1: before, W2: after}

"""A made checkpoint that speaks a simple language, so that its own drafter is often right.

Every token is followed by one other, all in one cycle. The trunk says so by its embedding and head:
its layers are damped until they barely move the streams. The drafter says so by its token tables,
but for a share of the tokens, behind which it proposes something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsv4.runtime.device import Device

if TYPE_CHECKING:
    from dsv4.checkpoint.mint import MintPlan

_DAMPED: Final = (
    ".attn.wo_b.scale",
    ".w2.scale",
    ".w2.weight_scale_2",
)
_DAMPING_BITS: Final = 6
_TOP_LOGIT: Final = 8.0
"""What the trunk says about the right token; others are a normal number of deviation 8/sqrt(D)."""
_TOP_BIAS: Final = 64.0
"""What the drafter's table says about the token that it proposes."""
_WRONG_STEP: Final = 7


@dataclass(frozen=True, slots=True)
class Language:
    """One cycle through a vocabulary, and the share of tokens behind which a drafter knows it."""

    vocabulary: int
    seed: int
    share: float

    def successors(self) -> np.ndarray:
        """The token that follows each token, [V]."""
        order = self._cycle()
        after = np.empty_like(order)
        after[order] = np.roll(order, -1)
        return after

    def believed(self) -> np.ndarray:
        """The token whose successor is proposed behind each token: itself where that is right."""
        order = self._cycle()
        raw = np.random.Philox(key=self.seed + 1).random_raw(len(order))
        right = (raw >> np.uint64(11)) * 2.0**-53 < self.share
        believed = np.empty_like(order)
        believed[order] = np.where(right, order, np.roll(order, _WRONG_STEP))
        return believed

    def signs(self, rank: int) -> np.ndarray:
        """A row of signs for each token, f32 [V,R]: nearly at right angles to all others."""
        count = self.vocabulary * rank
        words = np.random.Philox(key=self.seed + 2).random_raw(-(-count // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8))[:count]
        return bits.reshape(self.vocabulary, rank).astype(np.float32) * 2 - 1

    def _cycle(self) -> np.ndarray:
        raw = np.random.Philox(key=self.seed).random_raw(self.vocabulary)
        return np.argsort(raw, kind="stable")


def head_bits(xp: Any, embed: Any) -> Any:
    """Bits of the head's row for the successor of each token, from its embedding's. [V,D]."""
    factor = 2.0 ** round(math.log2(_TOP_LOGIT / embed.shape[1]))
    return _narrowed(_widened(xp, embed) * np.float32(factor))


def bias_bits(signs: Any) -> Any:
    """Bits of the token table's row for the successor of each token, from its signs. [V,R]."""
    factor = 2.0 ** round(math.log2(_TOP_BIAS / signs.shape[1]))
    return _narrowed(signs * np.float32(factor))


def sign_bits(signs: Any) -> Any:
    """Bits of rows of signs."""
    return _narrowed(signs)


def is_changed(plan: MintPlan, name: str) -> bool:
    """Whether a tensor differs from what the plan without a language has."""
    named = ("head.weight", "markov_w1.weight", "markov_w2.weight", "e_proj.weight",
             "e_proj.scale", "h_proj.scale")  # fmt: skip
    return plan.agreeing is not None and name.endswith((*named, *_DAMPED))


def speak(plan: MintPlan, device: Device, name: str, made: Any) -> None:
    """Change a made tensor of the device, in place, into what the language needs."""
    with device.active():
        _speak(plan, device, name, made)


def _speak(plan: MintPlan, device: Device, name: str, made: Any) -> None:
    c, xp = plan.config, device.xp
    if name.endswith(".weight_scale_2"):
        made *= np.float32(2.0**-_DAMPING_BITS)
    elif name.endswith((*_DAMPED, "h_proj.scale")):
        made -= np.uint8(_DAMPING_BITS)
    elif name.endswith("e_proj.scale"):
        made[...] = 127
    elif name.endswith("e_proj.weight"):
        # The next-token block passes the embedding on: one in E4M3 on the diagonal.
        made[...] = xp.eye(c.dim, dtype=np.uint8) * np.uint8(0x38)
    elif name == "head.weight":
        embed = plan.tensor(device, "embed.weight")
        made[device.to_device(successors(plan))] = head_bits(xp, embed)
    elif name.endswith("markov_w2.weight"):
        made[device.to_device(successors(plan))] = bias_bits(_signs(plan, device))
    else:
        ids = device.to_device(language(plan).believed())
        made[...] = sign_bits(_signs(plan, device)[ids])


def language(plan: MintPlan) -> Language:
    """What a plan with a language speaks."""
    assert plan.agreeing is not None, "only a plan with a language speaks"
    return Language(plan.config.vocab_size, plan.seed, plan.agreeing)


def successors(plan: MintPlan) -> np.ndarray:
    """The token that follows each token, [V]."""
    return language(plan).successors()


def _signs(plan: MintPlan, device: Device) -> Any:
    return device.to_device(language(plan).signs(plan.config.dspark_markov_rank))


def _widened(xp: Any, bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrowed(values: Any) -> Any:
    """The bits of numbers that bf16 holds."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)

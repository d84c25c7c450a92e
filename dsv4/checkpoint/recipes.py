"""What each tensor of a made checkpoint holds: healthy magnitudes, so that activations stay O(1).

Matrices have deviation gain / sqrt(columns), gains are near 1, mixers and biases small enough that
no mechanism saturates and large enough that each one shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.expected import Entry
from dsv4.kernels import mint
from dsv4.spec import Kernel

# Root mean square of what the kernels fill: E4M3 sums of four bytes, uniform E2M1 codes, sums of
# four 16-bit numbers.
E4M3_RMS: Final = 147.72232852066935
E2M1_RMS: Final = math.sqrt(8.5625)
NORMAL_DEVIATION: Final = math.sqrt((2**32 - 1) / 3)
# Steps -1, 0, 0, 1 of a scale's exponent have mean square 25/16.
_STEP_RMS: Final = 1.25
_SHARE_BITS: Final = 14
_EXPERT_GAIN: Final = 1.5
# The largest scale of a block is base + 2; NVFP4 puts it at 2^8, the largest power of two in E4M3.
_SECOND_BELOW_BASE: Final = 6
# Unused by weight-only kernels; published ones hold amax / (6 * 448) of calibration.
_INPUT_SCALE: Final = 8.0 / (6.0 * 448.0)
# Mean and deviation of vectors and of what is no matrix, by the last parts of their names.
_PLAIN: Final[Mapping[str, tuple[float, float]]] = {
    "embed.weight": (0.0, 1.0),
    "markov_w1.weight": (0.0, 1.0),
    "attn_sink": (0.0, 1.0),
    "ape": (0.0, 0.5),
    "gate.bias": (0.0, 0.3),
    "_base": (0.0, 0.5),
    "_scale": (0.8, 0.3),
}
_GAIN: Final = (1.0, 0.1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a tensor is filled: a kernel, its scalars and its stream; or one value everywhere.

    stream: the name that keys the random numbers. NVFP4 scales share the stream of the MXFP4 ones,
    so that both layouts of one seed are the same weights.
    """

    kernel: Kernel | None
    stream: str
    scalars: Mapping[str, float] = field(default_factory=dict)
    value: float = 0.0


def recipe(config: ModelConfig, name: str, entry: Entry) -> Recipe:
    """The recipe of a tensor of the census."""
    match entry.dtype:
        case "F8_E4M3" if name.endswith(".weight_scale"):
            base, threshold = _scale(E2M1_RMS, _EXPERT_GAIN, 16 * entry.shape[-1])
            scalars = {"base": base, "threshold": threshold, "second": base - _SECOND_BELOW_BASE}
            stream = name.removesuffix("weight_scale") + "scale"
            return Recipe(mint.mint_e4m3_scales, stream, scalars)
        case "F8_E4M3":
            return Recipe(mint.mint_e4m3, name)
        case "F8_E8M0":
            routed = entry.component == "routed experts"
            columns = entry.shape[-1] * (32 if routed else 128)
            gain, rms = (_EXPERT_GAIN, E2M1_RMS) if routed else (1.0, E4M3_RMS)
            base, threshold = _scale(rms, gain, columns)
            return Recipe(mint.mint_ue8m0, name, {"base": base, "threshold": threshold})
        case "I8" | "U8":
            return Recipe(mint.mint_e2m1x2, name)
        case "I64":
            return Recipe(mint.mint_expert_ids, name, {"experts": config.n_routed_experts})
    if name.endswith(".input_scale"):
        return Recipe(None, name, value=_INPUT_SCALE)
    if name.endswith(".weight_scale_2"):
        columns = config.moe_inter_dim if ".w2." in name else config.dim
        base, _ = _scale(E2M1_RMS, _EXPERT_GAIN, columns)
        return Recipe(None, name, value=math.ldexp(1.0, base - _SECOND_BELOW_BASE - 127))
    mean, deviation = _mean_and_deviation(name, entry)
    kernel = mint.mint_bf16 if entry.dtype == "BF16" else mint.mint_f32
    return Recipe(kernel, name, {"mean": mean, "scale": deviation / NORMAL_DEVIATION})


def _mean_and_deviation(name: str, entry: Entry) -> tuple[float, float]:
    for ending, found in _PLAIN.items():
        if name.endswith(ending):
            return found
    if len(entry.shape) == 1:
        return _GAIN
    return 0.0, 1.0 / math.sqrt(entry.shape[-1])


def _scale(rms: float, gain: float, columns: int) -> tuple[int, int]:
    """Base and share, out of 2^14, of scale bytes that give rms * scale the wanted deviation."""
    wanted = gain / math.sqrt(columns) / (rms * _STEP_RMS)
    mantissa, exponent = math.frexp(wanted)
    # wanted = 2 * mantissa * 2^(exponent - 1); one more in a share p of scales: 1 + 3p = square.
    share = ((2.0 * mantissa) ** 2 - 1.0) / 3.0
    return exponent - 1 + 127, round(share * 2**_SHARE_BITS)

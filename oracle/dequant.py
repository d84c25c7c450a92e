"""Block-scaled weights as plain numbers, and how many of them bf16 cannot hold."""

import numpy as np

from oracle.blocks import decode_fp8_block, decode_mxfp4, decode_nvfp4
from oracle.formats import decode, round_to

Outputs = dict[str, np.ndarray]


def dequant_fp8_block(codes: np.ndarray, scales: np.ndarray, inexact: np.ndarray) -> Outputs:
    """The weights of e4m3 codes with one power-of-two scale per 128 x 128 block.

    Shapes: codes [N, K], scales [ceil(N/128), ceil(K/128)], inexact [1] -> y [N, K], inexact [1].
    Rounds: not at all; the comparator encodes the exact product once.
    Source: `weight_block_size` and `scale_fmt` of the quantisation config.
    """
    return _with_count(decode_fp8_block(codes, scales), inexact)


def dequant_mxfp4(codes: np.ndarray, scales: np.ndarray, inexact: np.ndarray) -> Outputs:
    """The weights of packed e2m1 codes with one power-of-two scale per 32.

    Shapes: codes [N, K/2], scales [N, K/32], inexact [1] -> y [N, K], inexact [1].
    """
    return _with_count(decode_mxfp4(codes, scales), inexact)


def dequant_nvfp4(
    codes: np.ndarray, scales: np.ndarray, scale2: np.ndarray, inexact: np.ndarray
) -> Outputs:
    """The weights of packed e2m1 codes with an e4m3 scale per 16 and one float32 scale.

    Shapes: codes [N, K/2], scales [N, K/16], scale2 [1], inexact [1] -> y [N, K], inexact [1].
    Rounds: not at all; a product has at most 30 significant bits.
    """
    return _with_count(decode_nvfp4(codes, scales, float(scale2[0])), inexact)


def dequant_ue8m0(codes: np.ndarray) -> np.ndarray:
    """The power of two of every byte: 2^(byte - 127), byte 255 NaN.  Shapes: [N] -> [N]."""
    return decode(codes, "ue8m0")


def _with_count(weights: np.ndarray, inexact: np.ndarray) -> Outputs:
    """The weights, and `inexact` grown by those whose bf16 is not finite or not the weight."""
    stored = round_to(weights, "bf16")
    lost = ~(np.isfinite(stored) & (stored == weights))
    return {"y": weights, "inexact": inexact + np.count_nonzero(lost)}

"""A product with FP8 weights in 128 x 128 blocks, each with one scale: y = x (codes * scales)^T."""

import numpy as np

from oracle.blocks import Bytes, decode_fp8_block
from oracle.bounded import Bounded
from oracle.formats import Floats
from oracle.linear_bf16 import by_groups
from oracle.stages import StageProbe, unprobed


def linear_fp8(codes: Bytes, scales: Floats, x: Floats, *, probe: StageProbe = unprobed) -> Bounded:
    """Each row of x times each row of the decoded weights; activations are not quantised.

    Shapes: codes e4m3 [N,K], scales [ceil(N/128), ceil(K/128)] (values), x [M,K] -> [M,N].
    Rounds: nothing; code * scale has at most 4 + 24 bits, exact in float64.
    Magnitude: sum |x w|.
    Source: the FP8-block layout of weights and the bf16-dequant law of linear layers.
    """
    probe("scale", scales, "ceil(N/128) ceil(K/128)", exact=True)
    w = decode_fp8_block(codes, scales)
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)


def linear_fp8_grouped(
    codes: Bytes, scales: Floats, x: Floats, *, group: int, probe: StageProbe = unprobed
) -> Bounded:
    """Every `group` rows of the decoded weights on their own K columns of x.

    Shapes: codes [N,K], scales as in `linear_fp8`, x [M,N/group*K] -> [M,N].
    """
    probe("scale", scales, "ceil(N/128) ceil(K/128)", exact=True)
    return by_groups(decode_fp8_block(codes, scales), x, group)


def linear_fp8_grouped_bf16(
    codes: Bytes, scales: Floats, x: Floats, *, group: int, probe: StageProbe = unprobed
) -> Bounded:
    """As `linear_fp8_grouped`; the comparator encodes y as bf16."""
    return linear_fp8_grouped(codes, scales, x, group=group, probe=probe)

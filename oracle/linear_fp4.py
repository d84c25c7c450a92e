"""Products of FP8 activations with FP4 weights, MXFP4 or NVFP4; one matrix, or one a slot."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from oracle.blocks import decode_mxfp4, decode_nvfp4
from oracle.bounded import Bounded
from oracle.formats import decode

Ids = npt.NDArray[np.int64]


def linear_fp4_mx(
    codes: np.ndarray, scales: np.ndarray, x: np.ndarray, x_scales: np.ndarray
) -> Bounded:
    """Each row of x times each row of the decoded weights.

    Shapes: codes e2m1x2 [N,K/2], scales ue8m0 [N,K/32], x e4m3 [T,K], x_scales [T,K/128] -> [T,N].
    Rounds: nothing; every weight and activation is a few bits times a power of two.
    Magnitude: sum |a w|.
    Source: the published law of FP4 linear layers (activations quantised to FP8 per 128).
    """
    return _product(decode_mxfp4(codes, scales), _activations(x, x_scales))


def linear_fp4_nv(
    codes: np.ndarray, scales: np.ndarray, scale2: np.ndarray, x: np.ndarray, x_scales: np.ndarray
) -> Bounded:
    """As `linear_fp4_mx` with NVFP4 weights; scale2 [1] multiplies the sums, last.

    Shapes: codes e2m1x2 [N,K/2], scales e4m3 [N,K/16], x e4m3 [T,K], x_scales [T,K/128] -> [T,N].
    """
    value, magnitude = _product(decode_nvfp4(codes, scales, 1.0), _activations(x, x_scales))
    return Bounded(value * scale2[0], magnitude * np.abs(scale2[0]))


def linear_fp4_mx_selected(
    codes: np.ndarray,
    scales: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    *,
    group: int,
) -> Bounded:
    """Activation row s / group times the matrix of expert ids[s], for every slot s.

    Shapes: codes [E,N,K/2], scales [E,N,K/32], ids [S], x [S/group,K] -> [S,N].
    An id that is no expert gives a row of NaN.
    """
    return _slots(
        ids,
        codes,
        lambda e, t: linear_fp4_mx(codes[e], scales[e], x[t : t + 1], x_scales[t : t + 1]),
        group,
    )


def linear_fp4_nv_selected(
    codes: np.ndarray,
    scales: np.ndarray,
    scale2: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    *,
    group: int,
) -> Bounded:
    """As `linear_fp4_mx_selected` with NVFP4 weights: scales [E,N,K/16], scale2 [E]."""
    return _slots(
        ids,
        codes,
        lambda e, t: linear_fp4_nv(
            codes[e], scales[e], scale2[e : e + 1], x[t : t + 1], x_scales[t : t + 1]
        ),
        group,
    )


def _activations(x: np.ndarray, x_scales: np.ndarray) -> np.ndarray:
    return np.asarray(decode(x, "e4m3") * x_scales.repeat(128, axis=1))


def _product(w: np.ndarray, x: np.ndarray) -> Bounded:
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)


def _slots(ids: Ids, codes: np.ndarray, row: Callable[[int, int], Bounded], group: int) -> Bounded:
    value = np.full((len(ids), codes.shape[1]), np.nan)
    magnitude = np.zeros_like(value)
    for slot, expert in enumerate(ids):
        if 0 <= expert < len(codes):
            value[slot], magnitude[slot] = (part[0] for part in row(int(expert), slot // group))
    return Bounded(value, magnitude)

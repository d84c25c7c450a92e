"""Products of FP8 activations with FP4 weights, MXFP4 or NVFP4; one matrix, or experts' halves."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from oracle.blocks import decode_mxfp4, decode_nvfp4
from oracle.bounded import Bounded
from oracle.formats import Floats, decode
from oracle.swiglu import swiglu_weighted

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


def linear_fp4_mx_gate_up(
    gate_codes: np.ndarray,
    gate_scales: np.ndarray,
    up_codes: np.ndarray,
    up_scales: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    weights: Floats,
    *,
    group: int,
    limit: float,
) -> Bounded:
    """`swiglu_weighted` of two selected products of the same slots.

    Shapes: codes [E,N,K/2], scales [E,N,K/32], ids [S], x [S/group,K], weights [S] -> [S,N].
    """
    gate = linear_fp4_mx_selected(gate_codes, gate_scales, ids, x, x_scales, group=group)
    up = linear_fp4_mx_selected(up_codes, up_scales, ids, x, x_scales, group=group)
    return activated(gate, up, weights, limit)


def linear_fp4_nv_gate_up(
    gate_codes: np.ndarray,
    gate_scales: np.ndarray,
    gate_scale2: np.ndarray,
    up_codes: np.ndarray,
    up_scales: np.ndarray,
    up_scale2: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    weights: Floats,
    *,
    group: int,
    limit: float,
) -> Bounded:
    """As `linear_fp4_mx_gate_up` with NVFP4 weights: scales [E,N,K/16], scale2 [E]."""
    given = (ids, x, x_scales)
    gate = linear_fp4_nv_selected(gate_codes, gate_scales, gate_scale2, *given, group=group)
    up = linear_fp4_nv_selected(up_codes, up_scales, up_scale2, *given, group=group)
    return activated(gate, up, weights, limit)


def linear_fp4_mx_down(
    codes: np.ndarray,
    scales: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    order: Ids,
    shared: Floats,
) -> Bounded:
    """The products of a token's slots, each with its own row of x, added up, and the shared expert.

    Shapes: codes [E,N,K/2], scales [E,N,K/32], ids and order [T,A], x [T,A,K], shared [T,N]
    -> [T,N].
    An entry of order that is no slot, or an id that is no expert, makes the token NaN.
    """
    rows, x_rows = ids.reshape(-1), x.reshape(-1, x.shape[-1])
    row_scales = x_scales.reshape(len(rows), -1)
    return _joined(
        linear_fp4_mx_selected(codes, scales, rows, x_rows, row_scales, group=1), order, shared
    )


def linear_fp4_nv_down(
    codes: np.ndarray,
    scales: np.ndarray,
    scale2: np.ndarray,
    ids: Ids,
    x: np.ndarray,
    x_scales: np.ndarray,
    order: Ids,
    shared: Floats,
) -> Bounded:
    """As `linear_fp4_mx_down` with NVFP4 weights: scales [E,N,K/16], scale2 [E]."""
    rows, x_rows = ids.reshape(-1), x.reshape(-1, x.shape[-1])
    row_scales = x_scales.reshape(len(rows), -1)
    return _joined(
        linear_fp4_nv_selected(codes, scales, scale2, rows, x_rows, row_scales, group=1),
        order,
        shared,
    )


_SILU_SLOPE = 1.1
"""The largest slope of silu is 1.0998, at 2.4."""
_SECOND_ORDER = 2.0**-14
"""More than the relative error of a sum: what a product of two errors is to one of them."""


def activated(gate: Bounded, up: Bounded, weights: Floats, limit: float) -> Bounded:
    """Magnitude: how far errors of gate and up move the result, in units of theirs, plus itself.

    d (silu(g) u w) = silu'(g) u w dg + silu(g) w du + silu'(g) w dg du; clamps never widen.
    """
    value = swiglu_weighted(gate.value, up.value, weights, limit)
    ones = np.ones_like(up.value)
    silu = np.abs(swiglu_weighted(gate.value, ones, np.ones_like(weights), limit))
    u = np.minimum(np.abs(up.value), limit) if limit > 0 else np.abs(up.value)
    moved = _SILU_SLOPE * gate.magnitude * (u + _SECOND_ORDER * up.magnitude) + silu * up.magnitude
    magnitude = moved * np.abs(weights)[:, None] + np.abs(value)
    return Bounded(value, np.where(np.isnan(value), 0.0, magnitude))


def _joined(slots: Bounded, order: Ids, shared: Floats) -> Bounded:
    """The slots of every token in its order, and the shared row."""
    tokens, active = order.shape
    known = (order >= 0) & (order < active)
    picked = np.where(known, order, 0)[:, :, None]
    value, magnitude = (
        np.take_along_axis(part.reshape(tokens, active, -1), picked, axis=1).sum(axis=1)
        for part in slots
    )
    value = np.where(known.all(axis=1)[:, None], value, np.nan)
    return Bounded(value + shared, magnitude + np.abs(shared))


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

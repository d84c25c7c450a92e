"""The halves of the experts of some tokens: chosen ones and the shared one."""

import numpy as np

from oracle.act_quant import act_quant_fp8
from oracle.bounded import Bounded
from oracle.formats import Floats
from oracle.linear_fp4 import (
    Ids,
    activated,
    linear_fp4_mx_down,
    linear_fp4_mx_gate_up,
    linear_fp4_nv_down,
    linear_fp4_nv_gate_up,
)
from oracle.linear_fp8 import linear_fp8

Outputs = dict[str, Bounded]


def experts_mx_gate_up(
    gate_codes: np.ndarray,
    gate_scales: np.ndarray,
    up_codes: np.ndarray,
    up_scales: np.ndarray,
    shared_gate_codes: np.ndarray,
    shared_gate_scales: Floats,
    shared_up_codes: np.ndarray,
    shared_up_scales: Floats,
    ids: Ids,
    x: np.ndarray,
    x_scales: Floats,
    wide_x: Floats,
    weights: Floats,
    *,
    limit: float,
) -> Outputs:
    """silu(gate) * up: of every token's experts on FP8 codes of x, of the shared one on bf16 x.

    Shapes: codes [E,N,K/2], scales [E,N,K/32], shared codes [N,K], ids and weights [T,A], x and
    wide_x [T,K] -> y [T,A,N], shared_y [T,N].
    Source: `linear_fp4_mx_gate_up` for the first, `linear_fp8` and `swiglu` for the second.
    """
    routed = linear_fp4_mx_gate_up(
        gate_codes, gate_scales, up_codes, up_scales, ids.reshape(-1), x, x_scales,
        weights.reshape(-1), group=ids.shape[1], limit=limit,
    )  # fmt: skip
    gate = linear_fp8(shared_gate_codes, shared_gate_scales, wide_x)
    up = linear_fp8(shared_up_codes, shared_up_scales, wide_x)
    return _first(routed, gate, up, ids, limit)


def experts_nv_gate_up(
    gate_codes: np.ndarray,
    gate_scales: np.ndarray,
    gate_scale2: Floats,
    up_codes: np.ndarray,
    up_scales: np.ndarray,
    up_scale2: Floats,
    shared_gate_codes: np.ndarray,
    shared_gate_scales: Floats,
    shared_up_codes: np.ndarray,
    shared_up_scales: Floats,
    ids: Ids,
    x: np.ndarray,
    x_scales: Floats,
    wide_x: Floats,
    weights: Floats,
    *,
    limit: float,
) -> Outputs:
    """As `experts_mx_gate_up` with NVFP4 weights: scales [E,N,K/16], scale2 [E]."""
    routed = linear_fp4_nv_gate_up(
        gate_codes, gate_scales, gate_scale2, up_codes, up_scales, up_scale2, ids.reshape(-1), x,
        x_scales, weights.reshape(-1), group=ids.shape[1], limit=limit,
    )  # fmt: skip
    gate = linear_fp8(shared_gate_codes, shared_gate_scales, wide_x)
    up = linear_fp8(shared_up_codes, shared_up_scales, wide_x)
    return _first(routed, gate, up, ids, limit)


def experts_mx_down(
    codes: np.ndarray,
    scales: np.ndarray,
    shared_codes: np.ndarray,
    shared_scales: Floats,
    ids: Ids,
    hidden: Floats,
    shared_x: Floats,
    order: Ids,
) -> Bounded:
    """The second halves of a token's experts added up in its order, and of the shared one.

    Shapes: codes [E,N,K/2], scales [E,N,K/32], shared_codes [N,K], ids and order [T,A],
    hidden [T,A,K], shared_x [T,K] -> [T,N].
    Rounds: hidden to FP8 codes per 128, as prescribed.
    Source: `act_quant_fp8` and `linear_fp4_mx_down`; `linear_fp8`.
    """
    shared = linear_fp8(shared_codes, shared_scales, shared_x)
    given = (*_quantised(hidden), order, shared.value)
    return _second(linear_fp4_mx_down(codes, scales, ids, *given), shared)


def experts_nv_down(
    codes: np.ndarray,
    scales: np.ndarray,
    scale2: Floats,
    shared_codes: np.ndarray,
    shared_scales: Floats,
    ids: Ids,
    hidden: Floats,
    shared_x: Floats,
    order: Ids,
) -> Bounded:
    """As `experts_mx_down` with NVFP4 weights: scales [E,N,K/16], scale2 [E]."""
    shared = linear_fp8(shared_codes, shared_scales, shared_x)
    given = (*_quantised(hidden), order, shared.value)
    return _second(linear_fp4_nv_down(codes, scales, scale2, ids, *given), shared)


def _first(routed: Bounded, gate: Bounded, up: Bounded, ids: Ids, limit: float) -> Outputs:
    shape = (*ids.shape, -1)
    return {
        "y": Bounded(*(part.reshape(shape) for part in routed)),
        "shared_y": activated(gate, up, np.ones(len(gate.value)), limit),
    }


def _quantised(hidden: Floats) -> tuple[np.ndarray, Floats]:
    """(codes [T,A,K], scales [T,A,K/128])."""
    made = act_quant_fp8(hidden.reshape(-1, hidden.shape[-1]), group=128)
    tokens = hidden.shape[:2]
    codes, scales = np.asarray(made["codes"]), np.asarray(made["scales"], np.float64)
    return codes.reshape(*tokens, -1), scales.reshape(*tokens, -1)


def _second(routed: Bounded, shared: Bounded) -> Bounded:
    """The sum, whose last term is known as well as its own magnitude says."""
    return Bounded(routed.value, routed.magnitude + shared.magnitude)

"""Routed experts on their FP4 codes; ids stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine.rows import Rows
from dsv4.engine.weights import ExpertBank, ExpertKind, Fp4Bank
from dsv4.kernels.act_quant import act_quant_fp8
from dsv4.kernels.combine import combine_shared
from dsv4.kernels.linear_fp4 import (
    SLOTS,
    linear_fp4_mx_down,
    linear_fp4_mx_gate_up,
    linear_fp4_mx_selected,
    linear_fp4_nv_down,
    linear_fp4_nv_gate_up,
    linear_fp4_nv_selected,
)
from dsv4.spec import E4M3, F32

_GROUP = 128
_GATE_UP = {ExpertKind.MXFP4: linear_fp4_mx_gate_up, ExpertKind.NVFP4: linear_fp4_nv_gate_up}
_DOWN = {ExpertKind.MXFP4: linear_fp4_mx_down, ExpertKind.NVFP4: linear_fp4_nv_down}
_SELECTED = {ExpertKind.MXFP4: linear_fp4_mx_selected, ExpertKind.NVFP4: linear_fp4_nv_selected}


def first_halves(run: Rows, bank: ExpertBank, x: Any, ids: Any, weights: Any) -> tuple[Any, Any]:
    """What w2 takes of every row's experts: FP8 codes [T*A,F] and their scales.

    Shapes: x [T,D], ids and weights [T,A]. The routing weight is inside the codes.
    """
    c, active = run.config, run.config.n_activated_experts
    slots = run.rows * active
    hidden = run.buffer("expert hidden", active * c.moe_inter_dim).reshape(slots, c.moe_inter_dim)
    run.tape.launch(
        _GATE_UP[bank.kind], *matrix(bank.kind, bank.w1), *matrix(bank.kind, bank.w3),
        ids.reshape(slots), *_codes(run, "expert x", x, run.rows, 1), weights.reshape(slots),
        out=hidden, group=active, limit=c.swiglu_limit or float(np.finfo(np.float32).max),
    )  # fmt: skip
    return _codes(run, "expert hidden", hidden, run.rows, active)


def second_halves(
    run: Rows,
    bank: ExpertBank,
    given: tuple[Any, Any],
    ids: Any,
    order: Any,
    shared: Any,
    out: Any,
) -> Any:
    """out [T,D]: w2 of every row's experts summed as order [T,A] says, then plus shared [T,D]."""
    c, active = run.config, run.config.n_activated_experts
    slots = run.rows * active
    if active <= SLOTS:
        run.tape.launch(
            _DOWN[bank.kind], *matrix(bank.kind, bank.w2), ids,
            *(part.reshape(run.rows, active, -1) for part in given), order, shared, out=out,
        )  # fmt: skip
        return out
    y = run.buffer("contributions", active * c.dim).reshape(run.rows, active, c.dim)
    run.tape.launch(
        _SELECTED[bank.kind], *matrix(bank.kind, bank.w2), ids.reshape(slots), *given,
        out=y.reshape(slots, c.dim), group=1,
    )  # fmt: skip
    run.tape.launch(combine_shared, y, order, shared, out=out)
    return out


def matrix(kind: ExpertKind, w: Fp4Bank) -> tuple[Any, ...]:
    """The arrays of one matrix of every expert, as the kernels take them."""
    if kind is ExpertKind.NVFP4:
        return (w.codes, w.scales, w.second)
    return (w.codes, w.scales)


def _codes(run: Rows, name: str, x: Any, rows: int, slots: int) -> tuple[Any, Any]:
    """(FP8 codes [rows*slots,K], scales [rows*slots,K/128]) of the inputs of an FP4 product."""
    width = int(x.shape[1])
    codes = run.buffer(f"{name} codes", slots * width, fmt=E4M3).reshape(rows * slots, width)
    groups = -(-width // _GROUP)
    scales = run.buffer(f"{name} scales", slots * groups, fmt=F32).reshape(rows * slots, groups)
    run.tape.launch(act_quant_fp8, x, codes=codes, scales=scales, group=_GROUP)
    return codes, scales

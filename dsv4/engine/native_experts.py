"""Routed experts on their FP4 codes; ids stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine.rows import Rows
from dsv4.engine.weights import ExpertBank, ExpertKind, Fp4Bank
from dsv4.kernels.act_quant import act_quant_fp8
from dsv4.kernels.linear_fp4 import linear_fp4_mx_selected, linear_fp4_nv_selected
from dsv4.kernels.swiglu import swiglu_weighted
from dsv4.spec import E4M3, F32

_GROUP = 128


def chosen_experts(
    run: Rows, bank: ExpertBank, x: Any, ids: Any, weights: Any, contributions: Any
) -> Any:
    """Contributions [T,A,D] of every row's experts, a slot each.

    Shapes: x [T,D], ids and weights [T,A]. The routing weight is inside the codes that w2 takes.
    """
    c, active = run.config, run.config.n_activated_experts
    slots = run.rows * active
    chosen = ids.reshape(slots)
    gate, up, hidden = (
        run.buffer(f"expert {part}", active * c.moe_inter_dim).reshape(slots, c.moe_inter_dim)
        for part in ("gate", "up", "hidden")
    )
    given = _codes(run, "expert x", x, run.rows, 1)
    _selected(run, bank.kind, bank.w1, chosen, given, gate, active)
    _selected(run, bank.kind, bank.w3, chosen, given, up, active)
    limit = c.swiglu_limit or float(np.finfo(np.float32).max)
    run.tape.launch(swiglu_weighted, gate, up, weights.reshape(slots), out=hidden, limit=limit)
    given = _codes(run, "expert hidden", hidden, run.rows, active)
    y = contributions.reshape(slots, c.dim)
    _selected(run, bank.kind, bank.w2, chosen, given, y, 1)
    return contributions


def _codes(run: Rows, name: str, x: Any, rows: int, slots: int) -> tuple[Any, Any]:
    """(FP8 codes [rows*slots,K], scales [rows*slots,K/128]) of the inputs of an FP4 product."""
    width = int(x.shape[1])
    codes = run.buffer(f"{name} codes", slots * width, fmt=E4M3).reshape(rows * slots, width)
    groups = -(-width // _GROUP)
    scales = run.buffer(f"{name} scales", slots * groups, fmt=F32).reshape(rows * slots, groups)
    run.tape.launch(act_quant_fp8, x, codes=codes, scales=scales, group=_GROUP)
    return codes, scales


def _selected(
    run: Rows,
    kind: ExpertKind,
    w: Fp4Bank,
    ids: Any,
    given: tuple[Any, Any],
    out: Any,
    group: int,
) -> None:
    """One product a slot with the matrix of its expert; slot s takes row s // group."""
    codes, scales = given
    if kind is ExpertKind.NVFP4:
        run.tape.launch(
            linear_fp4_nv_selected, w.codes, w.scales, w.second, ids, codes, scales,
            out=out, group=group,
        )  # fmt: skip
    else:
        run.tape.launch(
            linear_fp4_mx_selected, w.codes, w.scales, ids, codes, scales, out=out, group=group
        )

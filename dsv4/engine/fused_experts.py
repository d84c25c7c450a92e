"""The expert sub-block of a step in three launches: the gate, the first halves, the second halves.

They give the bytes of `dsv4.engine.experts` under the arms that a fused step has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine.native_experts import matrix
from dsv4.engine.rows import Rows
from dsv4.engine.streams import Mixing, taken_input
from dsv4.engine.weights import DenseSlab, ExpertKind, LayerWeights
from dsv4.kernels.experts import (
    experts_mx_down,
    experts_mx_gate_up,
    experts_nv_down,
    experts_nv_gate_up,
)
from dsv4.kernels.router_gate import router_gate, router_gate_hash
from dsv4.spec import BF16, F32, I32

_GATE_UP = {ExpertKind.MXFP4: experts_mx_gate_up, ExpertKind.NVFP4: experts_nv_gate_up}
_DOWN = {ExpertKind.MXFP4: experts_mx_down, ExpertKind.NVFP4: experts_nv_down}


def fused_moe(run: Rows, w: LayerWeights, x: Any, mixing: Mixing, out: Any) -> Any:
    """out [T,D]: the chosen experts by ascending id, then the shared one.

    Shapes: x [T,D], whose other formats lie where `taken_input` says. mixing: open coefficients,
    which the first launch makes beside its own work.
    """
    c, bank = run.config, w.experts
    active, width = c.n_activated_experts, c.moe_inter_dim
    with run.phase("router"):
        ids, weights, order = _route(run, w, x, mixing)
    given = taken_input(run)
    hidden = run.buffer("routed hidden", active, width)
    shared = run.buffer("shared hidden bf16", width, fmt=BF16)
    with run.phase("experts"):
        run.tape.launch(
            _GATE_UP[bank.kind], *matrix(bank.kind, bank.w1), *matrix(bank.kind, bank.w3),
            *_codes(w.shared.w1), *_codes(w.shared.w3), ids, given.codes, given.scales, given.wide,
            weights, y=hidden, shared_y=shared,
            limit=c.swiglu_limit or float(np.finfo(np.float32).max),
        )  # fmt: skip
        run.tape.launch(
            _DOWN[bank.kind], *matrix(bank.kind, bank.w2), *_codes(w.shared.w2), ids, hidden,
            shared, order, out=out,
        )  # fmt: skip
    return out


def _route(run: Rows, w: LayerWeights, x: Any, mixing: Mixing) -> tuple[Any, Any, Any]:
    """(ids, weights, slots by ascending id) of every row's experts, [T,A] each."""
    assert mixing.open is not None, "a fused step leaves coefficients open"
    hyper = mixing.open.hyper
    c, active = run.config, run.config.n_activated_experts
    ids, order = run.buffer("expert ids", active, fmt=I32), run.buffer("order", active, fmt=I32)
    weights = run.buffer("expert weights", active, fmt=F32)
    chosen: tuple[Any, ...] = (w.bias,)
    kernel = router_gate
    if w.table is not None:
        kernel, chosen = router_gate_hash, (w.table, run.tokens)
    run.tape.launch(
        kernel, x, w.gate, *chosen, mixing.open.mix, hyper.scale, hyper.base, ids=ids,
        weights=weights, order=order, post=mixing.post, comb=mixing.comb,
        scores=run.buffer("scores", c.n_routed_experts),
        ticket=run.workspace.filled("gate ticket", 0, 1, fmt=I32), scale=c.route_scale,
        eps=c.hc_eps, iterations=c.hc_sinkhorn_iters,
    )  # fmt: skip
    return ids, weights, order


def _codes(w: DenseSlab) -> tuple[Any, Any]:
    return w.ref.codes, w.ref.scales

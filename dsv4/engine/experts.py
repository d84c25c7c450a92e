"""The expert sub-block on some rows: routing, the chosen experts, the shared one, their sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.engine import hostmath
from dsv4.engine.native_experts import first_halves, second_halves
from dsv4.engine.products import island, product, product_input
from dsv4.engine.rows import Rows
from dsv4.engine.weights import ExpertBank, ExpertKind, Fp4Bank, LayerWeights, SharedExpert
from dsv4.kernels.cast import cast_bf16
from dsv4.kernels.combine import combine_shared
from dsv4.kernels.dequant import dequant_mxfp4, dequant_nvfp4
from dsv4.kernels.island_dots import island_dots_bf16
from dsv4.kernels.router import router, router_hash
from dsv4.kernels.swiglu import swiglu, swiglu_weighted
from dsv4.spec import BF16, F32, I32


def moe(run: Rows, w: LayerWeights, x: Any, out: Any) -> Any:
    """out [T,D]: the chosen experts by ascending id, then the shared one.  Shapes: x [T,D]."""
    c = run.config
    with run.beside(1):
        with run.phase("router"):
            ids, weights, order = route(run, w, x)
        with run.phase("experts"):
            if run.arms.indirect_experts:
                hidden = first_halves(run, w.experts, x, ids, weights)
            else:
                contributions = run.buffer("contributions", c.n_activated_experts, c.dim)
                _grouped(run, w.experts, x, ids, weights, contributions)
    with run.beside(2), run.phase("shared expert"):
        shared = _shared(run, w.shared, x)
    with run.phase("experts"):
        if run.arms.indirect_experts:
            return second_halves(run, w.experts, hidden, ids, order, shared, out)
        run.tape.launch(combine_shared, contributions, order, shared, out=out)
    return out


def route(run: Rows, w: LayerWeights, x: Any) -> tuple[Any, Any, Any]:
    """(ids, weights, slots by ascending id) of every row's experts, [T,A] each."""
    c, active = run.config, run.config.n_activated_experts
    raw = island(run, x, w.gate, run.buffer("gate", c.n_routed_experts))
    ids, order = run.buffer("expert ids", active, fmt=I32), run.buffer("order", active, fmt=I32)
    weights = run.buffer("expert weights", active)
    outputs = dict(ids=ids, weights=weights, order=order)
    if run.arms.decode_path.host_math:
        device = run.stage.device

        def on_host() -> None:
            table = None
            if w.table is not None:
                tokens = device.to_numpy(run.tokens)
                table = device.to_numpy(w.table[device.to_device(tokens)]).astype(np.int32)
            bias = None if w.bias is None else device.to_numpy(w.bias)
            made = hostmath.route(
                device.to_numpy(raw), active, c.route_scale, bias=bias, chosen=table
            )
            for array, values in zip((ids, weights, order), made, strict=True):
                device.write(array, values)

        run.tape.call("host route", on_host)
    elif w.table is not None:
        run.tape.launch(router_hash, raw, w.table, run.tokens, **outputs, scale=c.route_scale)
    else:
        run.tape.launch(router, raw, w.bias, **outputs, scale=c.route_scale)
    return ids, weights, order


def _shared(run: Rows, w: SharedExpert, x: Any) -> Any:
    c = run.config
    given = product_input(run, "ffn x", x)
    gate = product(run, w.w1, given, run.buffer("shared gate", c.moe_inter_dim))
    up = product(run, w.w3, given, run.buffer("shared up", c.moe_inter_dim))
    hidden = run.buffer("shared hidden", c.moe_inter_dim)
    run.tape.launch(swiglu, gate, up, out=hidden, limit=_limit(run))
    given = product_input(run, "shared hidden", hidden)
    return product(run, w.w2, given, run.buffer("shared", c.dim))


def _limit(run: Rows) -> float:
    """The clamp of SwiGLU; a model without one has 0 in its configuration."""
    return run.config.swiglu_limit or float(np.finfo(np.float32).max)


def _grouped(
    run: Rows, bank: ExpertBank, x: Any, ids: Any, weights: Any, contributions: Any
) -> None:
    """Contributions [T,A,D] expert by expert, on bf16 made of its codes; the host groups rows."""
    device = run.stage.device

    def on_host() -> None:
        chosen, shares = device.to_numpy(ids), device.to_numpy(weights)
        for expert in np.unique(chosen):
            rows, slots = np.nonzero(chosen == expert)
            places = device.to_device(rows.astype(np.int32))
            picked = x[places]
            gain = device.to_device(np.ascontiguousarray(shares[rows, slots]))
            y = _run_expert(run, bank, int(expert), picked, gain)
            contributions[places, device.to_device(slots.astype(np.int32))] = y

    run.tape.call("grouped experts", on_host)


def _run_expert(run: Rows, bank: ExpertBank, expert: int, x: Any, gain: Any) -> Any:
    c, device = run.config, run.stage.device

    def times(matrix: Fp4Bank, given: Any, rows: int, columns: int) -> Any:
        w = _decoded(run, bank.kind, matrix, expert, rows, columns)
        y = device.empty((len(given), rows), F32)
        if run.smooth:
            island_dots_bf16.prepare(given, w, out=y, device=device).run()
            return y
        rounded = device.empty(given.shape, BF16)
        cast_bf16.prepare(given.reshape(-1), out=rounded.reshape(-1), device=device).run()
        device.gemm_bf16(w, rounded, y)
        return y

    gate = times(bank.w1, x, c.moe_inter_dim, c.dim)
    up = times(bank.w3, x, c.moe_inter_dim, c.dim)
    hidden = device.empty((len(x), c.moe_inter_dim), F32)
    swiglu_weighted.prepare(gate, up, gain, out=hidden, limit=_limit(run), device=device).run()
    return times(bank.w2, hidden, c.dim, c.moe_inter_dim)


def _decoded(
    run: Rows, kind: ExpertKind, matrix: Fp4Bank, expert: int, rows: int, columns: int
) -> Any:
    """One expert's matrix in bf16, in scratch."""
    device = run.stage.device
    w = run.workspace.fixed("expert", rows * columns, fmt=BF16).reshape(rows, columns)
    count = run.workspace.filled("staged inexact", 0, 1, fmt=I32)
    codes, scales = matrix.codes[expert], matrix.scales[expert]
    if kind is ExpertKind.MXFP4:
        dequant_mxfp4.prepare(codes, scales, y=w, inexact=count, device=device).run()
    else:
        second = matrix.second[expert : expert + 1]
        dequant_nvfp4.prepare(codes, scales, second, y=w, inexact=count, device=device).run()
    return w

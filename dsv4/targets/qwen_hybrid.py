"""What hybrid Qwen targets add: gated DeltaNet layers, and MLPs of routed experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.kernels.gated_delta import (
    gated_delta_conv,
    gated_delta_decay,
    gated_delta_scan,
    gated_delta_tail,
    gated_delta_unit,
)
from dsv4.kernels.scale import scale_gate
from dsv4.kernels.swiglu import swiglu_weighted
from dsv4.targets.config import LinearSizes, TargetConfig
from dsv4.targets.layers import Ops, WeightMatrix

NORM_EPS = 1e-6
"""Inside the root of the key and query norms; fixed by the published model."""

States = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A gated DeltaNet layer: qkv in the order q, k, v with heads ascending, f32 vectors."""

    qkv: WeightMatrix
    z: WeightMatrix
    b: WeightMatrix
    a: WeightMatrix
    conv: Any
    a_log: Any
    dt_bias: Any
    norm: Any
    out: WeightMatrix


@dataclass(frozen=True, slots=True)
class RoutedWeights:
    """Router, experts (gate, up, down each), the shared expert and its gate."""

    router: WeightMatrix
    experts: tuple[tuple[WeightMatrix, WeightMatrix, WeightMatrix], ...]
    shared: tuple[WeightMatrix, WeightMatrix, WeightMatrix]
    shared_gate: WeightMatrix


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """What a layer fed to its convolution and its scan: enough to redo any prefix."""

    u: Any
    q: Any
    k: Any
    v: Any
    factor: Any
    beta: Any


def linear_layer(
    ops: Ops, s: LinearSizes, eps: float, w: LinearWeights, n: Any, before: States, after: States
) -> tuple[Any, ScanInputs]:
    """Output rows [T,D] and the scan's inputs; writes convolution and recurrent state `after`."""
    rows = len(n)
    u = ops.linear(w.qkv, n)
    mixed = ops.empty(rows, s.channels)
    ops.run(gated_delta_conv, u, w.conv, before[0], out=mixed)
    q = _unit(ops, mixed[:, : s.keys].reshape(rows, s.key_heads, s.key_width), s.key_width**-0.5)
    k = _unit(ops, mixed[:, s.keys : 2 * s.keys].reshape(rows, s.key_heads, s.key_width), 1.0)
    v = mixed[:, 2 * s.keys :].reshape(rows, s.value_heads, s.value_width)
    factor, beta = ops.empty(rows, s.value_heads), ops.empty(rows, s.value_heads)
    a, b = ops.linear(w.a, n), ops.linear(w.b, n)
    ops.run(gated_delta_decay, a, b, w.a_log, w.dt_bias, factor=factor, beta=beta)
    scan = ScanInputs(u, q, k, v, factor, beta)
    y = rescan(ops, scan, rows, before, after)
    normed = ops.norm(y, w.norm, eps).reshape(rows, s.values)
    gated = ops.swiglu(ops.linear(w.z, n), normed)
    return ops.linear(w.out, gated), scan


def rescan(ops: Ops, scan: ScanInputs, keep: int, before: States, after: States) -> Any:
    """Outputs of the first `keep` steps; writes the states after them. The bytes are the same
    whatever followed those steps the first time."""
    u, q, k = scan.u[:keep], scan.q[:keep], scan.k[:keep]
    v, factor, beta = scan.v[:keep], scan.factor[:keep], scan.beta[:keep]
    taps = before[0].shape[1] + 1
    ops.run(gated_delta_tail, u, before[0], out=after[0], taps=taps)
    y = ops.empty(*v.shape)
    ops.run(gated_delta_scan, q, k, v, factor, beta, before[1], y=y, after=after[1])
    return y


def routed_mlp(
    ops: Ops, c: TargetConfig, w: RoutedWeights, n: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """Chosen experts by falling weight after the shared one, [T,D], and the router's decisions.

    The choice is made on the host; every expert sees one row at a time, so a row's bytes do not
    depend on its neighbours.
    """
    logits = ops.device.to_numpy(ops.linear(w.router, n))
    p = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    experts = np.argsort(-p, axis=1, kind="stable")[:, : c.chosen]
    weights = np.take_along_axis(p, experts, axis=1)
    if c.renormalise:
        weights /= weights.sum(axis=1, keepdims=True)
    shared = ops.mlp(*w.shared, n)
    xp = ops.device.xp
    gate = xp.ascontiguousarray(xp.broadcast_to(ops.linear(w.shared_gate, n), shared.shape))
    out = ops.empty(*shared.shape)
    ops.run(scale_gate, shared, gate, out=out)
    for t, chosen in enumerate(experts):
        row = n[t : t + 1]
        for expert, weight in zip(chosen, weights[t], strict=True):
            gate_w, up_w, down_w = w.experts[expert]
            part = ops.empty(1, gate_w.rows)
            ops.run(
                swiglu_weighted,
                ops.linear(gate_w, row),
                ops.linear(up_w, row),
                ops.vector(np.array([weight])),
                out=part,
                limit=0.0,
            )
            ops.add(ops.linear(down_w, part), out[t])
    return out, {"logits": logits, "experts": experts, "weights": weights}


def _unit(ops: Ops, x: Any, gain: float) -> Any:
    y = ops.empty(*x.shape)
    ops.run(gated_delta_unit, x, out=y, gain=gain, eps=NORM_EPS)
    return y

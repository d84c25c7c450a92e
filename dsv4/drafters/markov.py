"""The token bias of a drafter: what the token before a slot says about the slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4.kernels.markov import markov_bias_f32
from dsv4.kernels.movement import movement_add
from dsv4.kernels.scale import scale_gate, scale_softcap
from dsv4.targets.layers import Ops, WeightMatrix


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """w1 [V,R] raw bf16, w2 [V,R] in the precision mode; extra is a gate's or a joint projection.

    vanilla: bias = w2 e with e the row of the token before. gated: e times sigmoid(G [h; e] + g).
    rnn: gate, candidate and output out of J [s; e; h] + j; the state s starts at 0 in every block.
    """

    kind: str
    w1: Any
    w2: WeightMatrix
    rank: int
    extra: WeightMatrix | None
    extra_bias: Any

    def add_bias(self, ops: Ops, row: Any, token: Any, hidden: Any, state: Any) -> Any:
        """row [1,V] += the bias after a token, an i32 [1] on the device; gives the new state."""
        if self.kind == "vanilla" and self.w2.fmt == "bf16":
            ops.run(markov_bias_f32, self.w1, self.w2.data, token, logits=row)
            return None
        inner, state = self._inner(ops, ops.embed(self.w1, token), hidden, state)
        ops.add(ops.linear(self.w2, inner), row)
        return state

    def _inner(self, ops: Ops, e: Any, hidden: Any, state: Any) -> tuple[Any, Any]:
        """What w2 multiplies, [1,R], and the state after it."""
        if self.kind == "vanilla":
            return e, None
        xp, r = ops.device.xp, self.rank
        assert self.extra is not None
        if self.kind == "gated":
            gate = ops.linear(self.extra, xp.concatenate([hidden, e], axis=1))
            ops.add(self.extra_bias, gate)
            return _gated(ops, e, gate), None
        state = ops.zeros(1, r) if state is None else state
        joint = ops.linear(self.extra, xp.concatenate([state, e, hidden], axis=1))
        ops.add(self.extra_bias, joint)
        gate, candidate, out = (
            xp.ascontiguousarray(joint[:, i * r : (i + 1) * r]) for i in range(3)
        )
        kept = _gated(ops, state, gate)
        ops.run(
            movement_add, _gated(ops, _tanh(ops, candidate), -gate).reshape(-1), y=kept.reshape(-1)
        )
        return _tanh(ops, out), kept


def _gated(ops: Ops, x: Any, gate: Any) -> Any:
    y = ops.empty(*x.shape)
    ops.run(scale_gate, x, gate, out=y)
    return y


def _tanh(ops: Ops, x: Any) -> Any:
    y = ops.empty(*x.shape)
    ops.run(scale_softcap, x, out=y, factor=1.0, cap=1.0)
    return y

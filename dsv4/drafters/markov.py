"""The token bias of a drafter: what the token before a slot says about the slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4.kernels.markov import markov_bias_f32
from dsv4.kernels.movement import movement_add
from dsv4.kernels.scale import scale_gate, scale_softcap
from dsv4.speculation.draft_model import GreedyChain
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import Counters, RowsProposal, Sampler, SpecSampling
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


def chain_greedy(
    ops: Ops,
    head: MarkovHead | None,
    logits: Any,
    rows: Any,
    anchor: int,
    *,
    armed: bool,
    stash: bool,
) -> GreedyChain:
    """Each slot's best token, given the one before it; the bias, if armed, stays in the logits.

    The anchor is always the chain's first token: a verify may read the chain where it lies.
    """
    slots = len(logits)
    tokens = ops.ints([anchor] + [0] * slots)
    state = None
    for i in range(slots):
        row = logits[i : i + 1]
        if head is not None and armed:
            state = head.add_bias(ops, row, tokens[i : i + 1], rows[i : i + 1], state)
        ops.argmax(row, out=tokens[i + 1 : i + 2])
    return GreedyChain(tokens, logits, _stash(ops, head, tokens[:slots]) if stash else None)


def chain_sampled(
    ops: Ops,
    head: MarkovHead | None,
    logits: Any,
    rows: Any,
    anchor: int,
    sampling: SpecSampling,
    counters: Counters,
    sampler: Sampler,
    *,
    armed: bool,
    stash: bool,
) -> tuple[RowsProposal, Any]:
    """A token drawn for each slot, given the one before it, and the token rows of the chain."""
    first, tokens, stats, state = counters.events(len(logits)), [anchor], [], None
    for i in range(len(logits)):
        row = logits[i : i + 1]
        if head is not None and armed:
            state = head.add_bias(ops, row, ops.ints(tokens[-1:]), rows[i : i + 1], state)
        stats.append(sampler.stats(row, sampling))
        tokens.append(sampler.gumbel(row, stats[-1], sampling, (first + i) & 0xFFFFFFFF))
    own = ops.device.xp.concatenate(stats)
    kept = _stash(ops, head, ops.ints(tokens[:-1])) if stash else None
    return RowsProposal(tuple(tokens[1:]), logits, own), kept


def _stash(ops: Ops, head: MarkovHead | None, tokens: Any) -> Any:
    if head is None:
        raise refuse("internal", "rows of the chain", "no token table", "this is a bug")
    return ops.embed(head.w1, tokens)


def _gated(ops: Ops, x: Any, gate: Any) -> Any:
    y = ops.empty(*x.shape)
    ops.run(scale_gate, x, gate, out=y)
    return y


def _tanh(ops: Ops, x: Any) -> Any:
    y = ops.empty(*x.shape)
    ops.run(scale_softcap, x, out=y, factor=1.0, cap=1.0)
    return y

"""The walk through candidates: each slot's choice depends on the token chosen one slot earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.kernels.candidates import candidates_topk
from dsv4.spec import I32
from dsv4.speculation.philox import host_u01
from dsv4.speculation.refusals import refuse
from dsv4.speculation.sampling import Counters, SelectorProposal, SpecSampling
from dsv4.targets.layers import Ops, WeightMatrix


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Raw bf16 rows of the two codebooks, [V,R] each: of the token before, and of candidates."""

    predecessor: np.ndarray
    successor: np.ndarray

    @property
    def vocab(self) -> int:
        """Tokens that have a row."""
        return int(self.predecessor.shape[0])

    @property
    def rank(self) -> int:
        """Width of a row."""
        return int(self.predecessor.shape[1])


@dataclass(frozen=True, slots=True)
class SampledPath:
    """A sampled walk: tokens [N], chosen probabilities [N], ids [N,K], all probabilities [N,K]."""

    tokens: np.ndarray
    q_chosen: np.ndarray
    ids: np.ndarray
    q_rows: np.ndarray


def codebook_row(book: np.ndarray, token: int) -> np.ndarray:
    """A row of a codebook, widened from bf16 bits to float32. Exact."""
    return np.asarray((book[token].astype(np.uint32) << 16).view(np.float32))


def walk_greedy(
    books: Codebooks, unary: np.ndarray, ids: np.ndarray, hidden: np.ndarray, anchor: int
) -> np.ndarray:
    """The tokens of the greedy walk; the first of equal scores wins.

    Shapes: unary and ids [N,K], hidden [N,R] -> [N].  Rounds: float32 throughout.
    Errors: DrafterRefusal for other shapes, or an id without a codebook row.
    """
    unary, ids, hidden = _checked(books, unary, ids, hidden)
    previous, chosen = anchor, []
    for slot in range(len(ids)):
        scores = slot_scores(books, unary[slot], ids[slot], hidden[slot], previous)
        # A NaN never beats the first candidate, nor anything.
        previous = int(ids[slot, int(np.argmax(np.where(np.isnan(scores), -np.inf, scores)))])
        chosen.append(previous)
    return np.array(chosen, np.int64)


def walk_sampled(
    books: Codebooks,
    unary: np.ndarray,
    ids: np.ndarray,
    hidden: np.ndarray,
    anchor: int,
    temp: float,
    uniforms: Sequence[float],
) -> SampledPath:
    """A walk that draws each slot from the softmax of its scores, and what it drew from.

    Rounds: scores in float32, exponentials in float64, probabilities stored as float32.
    Errors: DrafterRefusal as in the greedy walk, or for a temperature that is not above 0.
    """
    if not temp > 0:
        raise refuse(
            "walk-temperature",
            "a sampled walk",
            f"temperature {temp}",
            "set it above 0, or walk greedily",
        )
    unary, ids, hidden = _checked(books, unary, ids, hidden)
    q_rows = np.empty(ids.shape, np.float32)
    previous, columns = anchor, []
    for slot in range(len(ids)):
        scores = slot_scores(books, unary[slot], ids[slot], hidden[slot], previous)
        e = np.exp(((scores - scores.max()) / np.float32(temp)).astype(np.float64))
        q_rows[slot] = (e / e.sum()).astype(np.float32)
        columns.append(_draw(q_rows[slot], uniforms[slot]))
        previous = int(ids[slot, columns[-1]])
    rows = np.arange(len(ids))
    return SampledPath(ids[rows, columns].astype(np.int64), q_rows[rows, columns], ids, q_rows)


def slot_scores(
    books: Codebooks, unary: np.ndarray, ids: np.ndarray, hidden: np.ndarray, previous: int
) -> np.ndarray:
    """unary + sum over the rank of predecessor * hidden * successor, for one slot's candidates."""
    if not 0 <= previous < books.vocab:
        raise refuse(
            "walk-predecessor-range",
            "a walk",
            f"token {previous} of {books.vocab}",
            "use the codebooks of this target's vocabulary",
        )
    if ids.min(initial=0) < 0 or ids.max(initial=-1) >= len(books.successor):
        raise refuse(
            "walk-candidate-range",
            "a walk",
            f"candidates {int(ids.min())} to {int(ids.max())} of {len(books.successor)}",
            "use the codebooks of this target's vocabulary",
        )
    before = codebook_row(books.predecessor, previous) * hidden.astype(np.float32)
    after = np.stack([codebook_row(books.successor, int(i)) for i in ids])
    edges = np.zeros(len(ids), np.float32)
    for j in range(books.rank):  # one candidate at a time adds its products in ascending order
        edges += before[j] * after[:, j]
    return np.asarray(unary.astype(np.float32) + edges)


def _draw(q: np.ndarray, u: float) -> int:
    cumulative = np.cumsum(q.astype(np.float64))
    below = np.flatnonzero(u < cumulative)
    if len(below):
        return int(below[0])
    return int(np.flatnonzero(q == q.max())[-1])


def _checked(
    books: Codebooks, unary: np.ndarray, ids: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots = len(hidden) if hidden.ndim == 2 else 0
    width = ids.size // slots if slots else 0
    asked = f"a walk of {slots} slots"
    if hidden.ndim != 2 or hidden.shape[1] != books.rank:
        raise refuse(
            "walk-hidden-length",
            asked,
            f"hidden rows {list(hidden.shape)}",
            f"pass rows of {books.rank}",
        )
    if not width or slots * width != ids.size:
        raise refuse("walk-ids-length", asked, f"{ids.size} ids", "pass K ids for every slot")
    if unary.size != ids.size:
        raise refuse(
            "walk-unary-length",
            asked,
            f"{unary.size} values for {ids.size} ids",
            "pass a value for every id",
        )
    return unary.reshape(slots, width), ids.reshape(slots, width), hidden


@dataclass(frozen=True, slots=True)
class SelectorHead:
    """The candidate selector of a DFlash2 drafter: codebooks on the host, a projection [R,D]."""

    books: Codebooks
    hidden_projection: WeightMatrix
    top_k: int

    def walk_greedy(
        self, unary: np.ndarray, ids: np.ndarray, hidden: np.ndarray, anchor: int
    ) -> np.ndarray:
        """As the function of that name, with this head's codebooks."""
        return walk_greedy(self.books, unary, ids, hidden, anchor)

    def walk_sampled(
        self,
        unary: np.ndarray,
        ids: np.ndarray,
        hidden: np.ndarray,
        anchor: int,
        temp: float,
        uniforms: Sequence[float],
    ) -> SampledPath:
        """As the function of that name, with this head's codebooks."""
        return walk_sampled(self.books, unary, ids, hidden, anchor, temp, uniforms)

    def propose_greedy(self, ops: Ops, logits: Any, rows: Any, anchor: int) -> list[int]:
        """The greedy walk through the candidates of every slot."""
        return [int(t) for t in self.walk_greedy(*self.candidates(ops, logits, rows), anchor)]

    def propose_sampled(
        self,
        ops: Ops,
        logits: Any,
        rows: Any,
        anchor: int,
        sampling: SpecSampling,
        counters: Counters,
    ) -> SelectorProposal:
        """A walk drawn with one uniform number a slot, by temperature alone."""
        values, ids, hidden = self.candidates(ops, logits, rows)
        first = counters.uniforms(len(logits))
        u = [host_u01(sampling.seed, (first + i) & 0xFFFFFFFF) for i in range(len(logits))]
        path = self.walk_sampled(values, ids, hidden, anchor, sampling.temp, u)
        tokens = tuple(int(t) for t in path.tokens)
        return SelectorProposal(tokens, path.ids, path.q_rows, path.q_chosen)

    def candidates(
        self, ops: Ops, logits: Any, rows: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and ids [N,K] of every slot's candidates and its hidden gate [N,R], on the host.

        Errors: DrafterRefusal when the target has tokens without a codebook row.
        """
        slots, vocab = logits.shape
        if vocab > self.books.vocab:
            raise refuse(
                "codebook-target",
                "a proposal",
                f"{vocab} tokens, {self.books.vocab} codebook rows",
                "use the target it was trained for",
            )
        values = ops.empty(slots, self.top_k)
        ids = ops.device.empty((slots, self.top_k), I32)
        ops.run(candidates_topk, logits, values=values, ids=ids)
        hidden = ops.linear(self.hidden_projection, rows)
        to_host = ops.device.to_numpy
        return to_host(values), to_host(ids), to_host(hidden)

"""DSpark: a drafter of a few blocks that proposes B tokens from the trunk's taps in one call.

Its rings hold rows made from committed positions only. `ingest` writes them, `draft` only reads.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oracle import index_lists
from oracle.argmax import argmax
from oracle.attention_block import attend, kv_rows, project_output, queries
from oracle.block import Probe, collapse_exit, copies, ignore, run_block
from oracle.trunk import Model
from oracle.weights import Block, Drafter


@dataclass(slots=True)
class DrafterCache:
    """One ring [W,d] a stage, row of position p in slot p mod W; next: the position to ingest."""

    rings: tuple[np.ndarray, ...]
    next: int = 0

    def reset(self) -> None:
        """Begin a new sequence."""
        self.next = 0
        for ring in self.rings:
            ring[:] = 0.0


@dataclass(frozen=True, slots=True)
class Draft:
    """What one call proposes.

    tokens [B+1]: the input token, then the proposals for the positions after its own. logits
    [B,V]: with the token bias, so that each row's argmax is its proposal. confidence [B]: larger
    means likelier to be accepted; not a probability. hidden [B,D]: the collapsed rows.
    """

    tokens: npt.NDArray[np.int64]
    logits: np.ndarray
    confidence: np.ndarray
    hidden: np.ndarray


def new_drafter_cache(model: Model) -> DrafterCache:
    """Empty rings for one sequence."""
    c, stages = model.config, _drafter(model).stages
    real = model.conditions.law.real
    return DrafterCache(tuple(np.zeros((c.window_size, c.head_dim), real) for _ in stages))


def main_stream(model: Model, taps: np.ndarray) -> np.ndarray:
    """The one input that all stages share.  Shapes: taps [T,n*D] -> [T,D]."""
    drafter, cond = _drafter(model), model.conditions
    return cond.norm(cond.linear(taps, drafter.main_proj), drafter.main_norm)


def main_rows(model: Model, stage: int, stream: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """A stage's ring rows of committed positions; its attn_norm takes no part.

    Shapes: stream [T,D] -> [T,d].
    """
    return kv_rows(model.conditions, _drafter(model).stages[stage].attention, stream, positions)


def ingest(model: Model, cache: DrafterCache, taps: np.ndarray) -> None:
    """Write the rows of the next committed positions, each exactly once and in order.

    Shapes: taps [T,n*D], for positions cache.next...
    """
    window = model.config.window_size
    positions = np.arange(cache.next, cache.next + len(taps))[-window:]
    stream = main_stream(model, taps[-window:].astype(model.conditions.law.real))
    for stage, ring in enumerate(cache.rings):
        ring[positions % window] = main_rows(model, stage, stream, positions)
    cache.next += len(taps)


def draft(model: Model, cache: DrafterCache, token: int, probe: Probe = ignore) -> Draft:
    """The proposals after `token`, which stands at the position after the last ingested one.

    Errors: ValueError when nothing was ingested or a draft row has no position left.
    """
    c, cond, drafter = model.config, model.conditions, _drafter(model)
    newest = cache.next - 1
    if newest < 0 or not 0 <= token < c.vocab_size:
        raise ValueError(
            f"a draft after token {token} was asked for, with {cache.next} positions ingested\n"
            f"  ingest one position at least, and give a token of 0..{c.vocab_size - 1}"
        )
    block = c.dspark_block_size
    positions = draft_positions(newest, block)
    if positions[-1] >= len(cond.window_table):
        raise ValueError(
            f"draft rows up to position {positions[-1]} were asked for\n"
            f"  the rope table ends at {len(cond.window_table) - 1}; build a larger model"
        )
    ids = np.full(block, c.dspark_noise_token_id, np.int64)
    ids[0] = token
    listed = index_lists.draft_list(newest, c.window_size, block)
    state = copies(model.weights.embed[ids], c.hc_mult)
    for stage, weights in enumerate(drafter.stages):
        state = _run_stage(model, weights, state, ids, cache.rings[stage], positions, listed)
        probe(f"stage{stage}", state)
    hidden = collapse_exit(cond, drafter.exit, state)
    logits = cond.linear(cond.norm(hidden, drafter.exit.norm), model.weights.head)
    return _chain(model, token, logits, hidden)


def draft_positions(newest: int, block: int) -> npt.NDArray[np.int64]:
    """Where the rows of a draft stand: after the newest committed position, the token's first."""
    return newest + 1 + np.arange(block)


def _run_stage(
    model: Model,
    weights: Block,
    state: np.ndarray,
    ids: np.ndarray,
    ring: np.ndarray,
    positions: np.ndarray,
    listed: np.ndarray,
) -> np.ndarray:
    cond, a = model.conditions, weights.attention

    def attention(x: np.ndarray) -> np.ndarray:
        q, _ = queries(cond, a, x, positions)
        kv = np.concatenate([ring, kv_rows(cond, a, x, positions)])
        rows = np.broadcast_to(listed, (len(x), len(listed)))
        return project_output(cond, a, attend(cond, a, q, kv, rows), positions)

    return run_block(cond, weights, state, ids, attention)


def _chain(model: Model, token: int, logits: np.ndarray, hidden: np.ndarray) -> Draft:
    """Resolve rows in order: each is biased by the token that was really chosen before it."""
    cond, drafter = model.conditions, _drafter(model)
    tokens, logits = [token], logits.copy()
    embedded = np.empty((len(logits), drafter.markov_w1.shape[1]), logits.dtype)
    for i in range(len(logits)):
        embedded[i] = drafter.markov_w1[tokens[-1]]
        logits[i] += cond.linear(embedded[i], drafter.markov_w2)
        tokens.append(int(argmax(logits[i : i + 1])[0]))
    features = np.concatenate([hidden, embedded], axis=1)
    confidence = cond.linear(features, drafter.confidence)[:, 0]
    return Draft(np.asarray(tokens, np.int64), logits, confidence, hidden)


def _drafter(model: Model) -> Drafter:
    if model.weights.drafter is None:
        raise ValueError("this checkpoint holds no DSpark drafter; use one with mtp.0.main_proj")
    return model.weights.drafter

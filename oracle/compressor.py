"""The compressor: blocks of rows pooled into one row by a softmax of every channel of its own."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import FORMATS, round_to


def pool_block(values: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The sum of values under a softmax of the logits over the rows, channel by channel.

    Shapes: values [..,P,w], logits [..,P,w] -> [..,w].
    A row that is not there has logit -inf; one row at least must be there.
    """
    weights = np.exp(logits - logits.max(axis=-2, keepdims=True))
    return np.asarray((weights * values).sum(axis=-2) / weights.sum(axis=-2))


def pool_blocks(
    kv: np.ndarray,
    score: np.ndarray,
    ape: np.ndarray,
    *,
    overlap: bool,
    previous: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """The pooled row of every block of raw projection rows.

    Shapes: kv, score [B*r,c*w], ape [r,c*w], previous two of [r,c*w] -> [B,w].
    With overlap (c = 2) a block pools the block before it through the first half of the channels
    and itself through the second half; `previous` is the raw rows before the first block, absent
    when nothing precedes it. Without overlap c = 1.
    Source: compressor.ape is added to the score by the row's place inside its own block, for the
    block before too.
    """
    ratio, width = ape.shape
    values = kv.reshape(-1, ratio, width)
    logits = score.reshape(-1, ratio, width) + ape
    if not overlap:
        return pool_block(values, logits)
    half = width // 2
    first_kv, first_score = previous if previous is not None else no_rows(ratio, width, kv.dtype)
    before = np.concatenate([first_kv[None], values[:-1]])[: len(values), :, :half]
    before_logits = np.concatenate([first_score[None] + ape, logits[:-1]])[: len(values), :, :half]
    return pool_block(
        np.concatenate([before, values[..., half:]], axis=1),
        np.concatenate([before_logits, logits[..., half:]], axis=1),
    )


def no_rows(
    rows: int, width: int, real: type[np.floating] | np.dtype[np.floating] = np.float64
) -> tuple[np.ndarray, np.ndarray]:
    """(kv, score) rows that weigh nothing: values 0, logits -inf."""
    return np.zeros((rows, width), real), np.full((rows, width), -np.inf, real)


def compressor_pool(
    kv: np.ndarray,
    score: np.ndarray,
    ape: np.ndarray,
    first: int,
    ring: int,
    previous: int,
    overlap: int,
    B: int,
) -> Bounded:
    """B neighbouring blocks pooled, the first one at position `first`; position p is row p % ring.

    Shapes: kv, score [S,L], ape [C,L] -> [B,L / (1 + overlap)].
    previous: whether the rows before the first block exist. A channel without any row gives 0.
    Rounds: score + ape to float32, as the model prescribes.
    """
    ratio = len(ape)
    starts = first + ratio * np.arange(B)
    return _pooled(kv, score, ape, starts, ring, (starts > first) | bool(previous), bool(overlap))


def compressor_pool_at(
    kv: np.ndarray,
    score: np.ndarray,
    ape: np.ndarray,
    positions: np.ndarray,
    ring: int,
    overlap: int,
) -> Bounded:
    """For every query the block that ends at its position, zeros where none does.

    Shapes: kv, score [S,L], ape [C,L], positions [T] -> [T,L / (1 + overlap)].
    """
    starts = positions - len(ape) + 1
    complete = (starts >= 0) & (starts % len(ape) == 0)
    starts = np.where(complete, starts, 0)
    pooled = _pooled(kv, score, ape, starts, ring, starts > 0, bool(overlap))
    return Bounded(*(np.where(complete[:, None], part, 0.0) for part in pooled))


def _pooled(
    kv: np.ndarray,
    score: np.ndarray,
    ape: np.ndarray,
    starts: np.ndarray,
    ring: int,
    previous: np.ndarray,
    overlap: bool,
) -> Bounded:
    """The magnitude is that of `softmax` in the contracts, with the maximum subtracted."""
    ratio, width = ape.shape
    rows = (starts[:, None] + np.arange(ratio)) % ring
    values, logits = kv[rows], round_to(score[rows] + ape, "f32")
    if overlap:
        before = (starts[:, None] - ratio + np.arange(ratio)) % ring
        before = np.where(previous[:, None], before, 0)
        there = previous[:, None, None]
        logits_before = np.where(there, round_to(score[before] + ape, "f32"), -np.inf)
        half = width // 2
        values = np.concatenate([kv[before][..., :half], values[..., half:]], axis=1)
        logits = np.concatenate([logits_before[..., :half], logits[..., half:]], axis=1)
    values = np.where(logits == -np.inf, 0.0, values)
    absent = (logits == -np.inf).all(axis=1)
    value = np.where(absent, 0.0, pool_block(values, logits))
    depth = logits.max(axis=1, keepdims=True) - logits
    weights = np.exp(-depth)
    shares = weights / weights.sum(axis=1, keepdims=True) + FORMATS["f64"].min_normal
    sizes = shares * (1 + depth) * (np.abs(values) + np.abs(value)[:, None])
    sizes = np.where(logits == -np.inf, 0.0, sizes)
    return Bounded(value, sizes.sum(axis=1))

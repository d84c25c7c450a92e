"""The compressor: blocks of rows pooled into one row by a softmax of every channel of its own."""

import numpy as np


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

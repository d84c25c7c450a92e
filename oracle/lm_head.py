"""The head: products of the last hidden rows with every row of the vocabulary's matrix."""

from typing import Any

import numpy as np
import numpy.typing as npt

from oracle.argmax import argmax
from oracle.bounded import Bounded
from oracle.formats import Floats


def lm_head(x: Floats, w: Floats) -> Bounded:
    """The logit of every token of the vocabulary for every row.

    Shapes: x [T,D], w [V,D] -> [T,V].
    Rounds: nothing; a product of a float32 and a bf16 is exact in float64.
    Magnitude: sum |x w|, what the rounding errors of any order of the sum scale with.
    Source: the head takes float32 activations and bf16 weights.
    """
    return Bounded(x @ w.T, np.abs(x) @ np.abs(w).T)


def lm_head_f32(x: Floats, w: Floats) -> Bounded:
    """As `lm_head`; the kernel adds in float32."""
    return lm_head(x, w)


def lm_head_argmax(
    x: Floats, w: Floats, keys: npt.NDArray[np.int64], ticket: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """The first index of the largest logit of every row, and that logit.

    Shapes: x [T,D], w [V,D], keys [T], ticket [1] -> ids [T], logit [T], keys and ticket zero.
    NaN never beats a number; a row of NaN gives index 0 and NaN.
    Source: greedy decoding; ties to the lowest index.
    """
    logits, magnitudes = lm_head(x, w)
    ids = argmax(logits)
    rows = np.arange(len(ids))
    return {
        "ids": ids,
        "logit": Bounded(logits[rows, ids], magnitudes[rows, ids]),
        "keys": np.zeros_like(keys),
        "ticket": np.zeros_like(ticket),
    }

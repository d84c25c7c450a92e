"""The drafter's bias on the logits of a token, from the token before it."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats


def markov_bias(w1: Floats, w2: Floats, ids: npt.NDArray[np.int64], logits: Floats) -> Bounded:
    """Every logit plus the product of its token's row of w2 with row ids[t] of w1.

    Shapes: w1 [V,R], w2 [V,R], ids [T], logits [T,V] -> [T,V].
    Rounds: nothing. An id that is no row of w1 makes its row NaN.
    Magnitude: |logit| + sum |w1 w2|.
    Source: sequential chain of the drafter; `dspark_markov_rank` of the config.
    """
    known = (ids >= 0) & (ids < len(w1))
    row = w1[np.where(known, ids, 0)]
    biased = np.where(known[:, None], logits + row @ w2.T, np.nan)
    return Bounded(biased, np.abs(logits) + np.abs(row) @ np.abs(w2).T)


def markov_bias_f32(w1: Floats, w2: Floats, ids: npt.NDArray[np.int64], logits: Floats) -> Bounded:
    """As `markov_bias`; the kernel adds in float32."""
    return markov_bias(w1, w2, ids, logits)

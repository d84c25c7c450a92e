"""The drafter's confidence in a token."""

import numpy as np
import numpy.typing as npt

from oracle.bounded import Bounded
from oracle.formats import Floats


def confidence(x: Floats, w1: Floats, ids: npt.NDArray[np.int64], proj: Floats) -> Bounded:
    """The product of proj with x[t] and, after it, row ids[t] of w1.

    Shapes: x [T,D], w1 [V,R], ids [T], proj [D+R] -> [T].
    Rounds: nothing. An id that is no row of w1 gives NaN.
    Magnitude: sum |input proj|.
    Source: confidence head of the drafter: the collapsed hidden row before its norm, then the
    Markov row of the token before; a raw logit, no sigmoid.
    """
    known = (ids >= 0) & (ids < len(w1))
    row = np.where(known[:, None], w1[np.where(known, ids, 0)], np.nan)
    both = np.concatenate([x, row], axis=1)
    return Bounded(both @ proj, np.abs(both) @ np.abs(proj))

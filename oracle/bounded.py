"""A value together with the magnitudes from which its error bound is computed."""

from typing import NamedTuple

import numpy as np


class Bounded(NamedTuple):
    """What an oracle returns for an output with a `Within` contract.

    value: the float64 result. magnitude: what the bound scales with, such as sum |a_i b_i|.
    """

    value: np.ndarray
    magnitude: np.ndarray

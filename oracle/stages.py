"""Named stages inside an operator: where a kernel's intermediate values can be looked up.

A stage has the name of a PROBE in the `.cu`; its index there is the flat index here.
"""

from typing import Protocol

import numpy as np


class StageProbe(Protocol):
    """Called with the value of each stage.

    axes: an expression for each dimension, such as "T ceil(K/128)". exact: the value is prescribed
    to the bit. An element that is NaN here is one that the kernel need not visit.
    """

    def __call__(self, name: str, value: np.ndarray, axes: str, *, exact: bool = False) -> None:
        """Look at a stage."""


def unprobed(name: str, value: np.ndarray, axes: str, *, exact: bool = False) -> None:
    """The probe that looks at nothing."""

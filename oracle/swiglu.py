"""The activation between the two halves of an expert."""

import numpy as np

from oracle.formats import Floats

LOWEST_GATE = -700.0
"""Gates are clamped here from below: float64 still holds e^-700, and the product with any finite
float32 up and weight is zero in float32. So a finite gate never reads as exactly zero, and -inf
counts as a very negative gate."""


def swiglu(gate: Floats, up: Floats, limit: float) -> Floats:
    """silu(gate) * up, both clamped by the limit first; the gate only from above.

    Shapes: gate [T, D], up [T, D] -> [T, D].
    Rounds: not at all. NaN in either input gives NaN; a limit of 0 or less disables the clamps.
    Source: `swiglu_limit` of the model config; expert of the published model.
    """
    if limit > 0:
        gate = np.minimum(gate, limit)
        up = np.clip(up, -limit, limit)
    gate = np.maximum(gate, LOWEST_GATE)
    return np.asarray(gate / (1.0 + np.exp(-gate)) * up)


def swiglu_weighted(gate: Floats, up: Floats, weights: Floats, limit: float) -> Floats:
    """The same, times the routing weight of every row.

    Shapes: gate [T, D], up [T, D], weights [T] -> [T, D].
    Source: routed experts weigh before their second product, inside its quantised input.
    """
    return np.asarray(swiglu(gate, up, limit) * weights[:, None])

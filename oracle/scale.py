"""Factors on rows: a soft cap, a gate."""

import numpy as np

from oracle.formats import Floats


def scale_softcap(x: Floats, *, factor: float, cap: float) -> Floats:
    """factor * x, and cap * tanh(factor * x / cap) where cap is above 0.  Shapes: [T,D] -> [T,D].

    Source: `output_multiplier` and `final_logit_softcapping` of a drafter's configuration.
    """
    scaled = x * factor
    return np.asarray(np.tanh(scaled / cap) * cap if cap > 0 else scaled)


def scale_gate(x: Floats, gate: Floats) -> Floats:
    """x times the sigmoid of the gate.  Shapes: x [T,D], gate [T,D] -> [T,D].

    Source: `attn_output_gate` of hybrid targets.
    """
    return np.asarray(x / (1.0 + np.exp(-gate)))

"""RMS norm: rows, or the lanes of each head, scaled to unit mean square."""

import numpy as np

from oracle.bounded import Bounded
from oracle.formats import Floats
from oracle.stages import StageProbe, unprobed


def rms_norm(x: Floats, w: Floats, *, eps: float, probe: StageProbe = unprobed) -> Floats:
    """Each row of x over the root of its mean square, times w.

    Shapes: x [T,D], w [D] -> [T,D].
    Rounds: nothing.  A NaN makes its row NaN; an infinity makes itself NaN and the rest of its
    row zero, as the formula says.
    Source: config `rms_norm_eps`; gains are stored in bf16 and used as float32.
    """
    return np.asarray(w * (x * _inverse_root(x, eps, "T", probe)))


def rms_norm_f32(x: Floats, w: Floats, *, eps: float, probe: StageProbe = unprobed) -> Bounded:
    """As `rms_norm`. Magnitude: |y|, because every rounding of the kernel scales y by 1 + u."""
    y = rms_norm(x, w, eps=eps, probe=probe)
    return Bounded(y, np.abs(y))


def rms_norm_head(x: Floats, *, eps: float, probe: StageProbe = unprobed) -> Floats:
    """Each head's lanes over the root of their mean square; no gain.

    Shapes: x [T,H,K] -> [T,H,K].
    Source: the query norm after wq_b, one per head.
    """
    return np.asarray(x * _inverse_root(x, eps, "T H", probe))


def rms_norm_head_f32(x: Floats, *, eps: float, probe: StageProbe = unprobed) -> Bounded:
    """As `rms_norm_head`. Magnitude: |y|."""
    y = rms_norm_head(x, eps=eps, probe=probe)
    return Bounded(y, np.abs(y))


def _inverse_root(x: Floats, eps: float, axes: str, probe: StageProbe) -> Floats:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    factor = np.asarray(1.0 / np.sqrt(mean_square + eps))
    probe("mean_square", mean_square[..., 0], axes)
    probe("factor", factor[..., 0], axes)
    return factor

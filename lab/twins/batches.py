"""Norms, quantisers and elementwise kernels: every row of their own cases alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dsv4 import registry
from lab.cases import Case, cases, inputs_of, scalars_of
from lab.twins import Trial, Twin
from lab.twins.rows import rows_alone

_KERNELS = (
    "act_quant_fp8",
    "act_quant_fp8_inplace",
    "act_quant_fp4_inplace",
    "combine",
    "combine_shared",
    "hadamard",
    "hyper_collapse",
    "movement_mean",
    "rms_norm",
    "rms_norm_f32",
    "rms_norm_head",
    "rms_norm_head_f32",
    "swiglu",
    "swiglu_weighted",
)
_MOST_ROWS = 8  # of a round


def _contents(kernel: str, case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """What the case gives the kernel; its own generator makes the values."""
    spec = registry.spec(kernel)
    return {**inputs_of(spec, case, seed=0), **scalars_of(spec, case), **case.axes}


def _rows_of_cases(kernel: str) -> Twin:
    axis = registry.spec(kernel).batch_invariant
    trials = tuple(
        Trial(case.label, partial(_contents, kernel, case))
        for case in cases(kernel)
        if case.level == "quick" and 2 <= case.axes[axis] <= _MOST_ROWS
    )
    return rows_alone(kernel, axis=axis, trials=trials)


TWINS = tuple(_rows_of_cases(kernel) for kernel in _KERNELS)

"""The law of rows as a twin: many rows in one launch give what each of them gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.spec import KernelSpec
from lab.twins import Inputs, Side, Trial, Twin
from lab.twins.bench import Bench, Outputs


def rows_alone(
    kernel: str, *, axis: str, trials: tuple[Trial, ...], single: str | None = None, **named: Any
) -> Twin:
    """The twin of one launch of `kernel` over all rows of the axis and one launch per row.

    single: the kernel that takes the rows one by one, with the same arguments; `kernel` itself when
    it is not given. named: scalars and options of both.
    """
    alone = single or kernel
    return Twin(
        name=f"{kernel}_rows",
        left=f"{kernel}, all rows",
        right=f"{alone}, one row a launch",
        kernels=tuple(dict.fromkeys((kernel, alone))),
        trials=trials,
        run_left=lambda bench, inputs: bench.run(kernel, **inputs, **named),
        run_right=one_by_one(alone, axis, **named),
    )


def one_by_one(kernel: str, axis: str, **named: Any) -> Side:
    """A side that launches every row along the axis alone and puts the rows together again."""
    spec = registry.spec(kernel)

    def run(bench: Bench, inputs: Inputs) -> Outputs:
        count = _size(spec, inputs, axis)
        shared = {
            name: bench.put(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
            if name != axis and axis not in _axes(spec, name)
        }
        rows = []
        for index in range(count):
            mine = {
                name: np.take(value, [index], axis=_axes(spec, name).index(axis))
                for name, value in inputs.items()
                if axis in _axes(spec, name)
            }
            alone = {axis: 1} if axis in inputs else {}
            rows.append(bench.run(kernel, **shared, **mine, **alone, **named))
        return {
            arg.name: np.concatenate([r[arg.name] for r in rows], axis=arg.axes.index(axis))
            for arg in spec.outputs
        }

    return run


def _axes(spec: KernelSpec, name: str) -> tuple[str, ...]:
    return next((a.axes for a in spec.arrays if a.name == name), ())


def _size(spec: KernelSpec, inputs: Inputs, axis: str) -> int:
    for name, value in inputs.items():
        if axis in _axes(spec, name):
            return int(value.shape[_axes(spec, name).index(axis)])
    return int(inputs[axis])

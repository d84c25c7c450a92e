"""Runs both sides of twins on the same inputs and counts the bytes in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.errors import Dsv4Error, SpecError
from dsv4.runtime.device import Device
from lab.cases import generator
from lab.compare.census import POISON_BYTES
from lab.twins import Trial, Twin, trials_of
from lab.twins.bench import Bench, Outputs
from oracle.formats import decode

PASS, FAIL, ERROR = "PASS", "FAIL", "ERROR"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that differs: where, and what each side has there.

    trial: the input set. where: index along each axis. byte: offset in the contiguous output.
    differing: bytes that differ in this output on this trial.
    """

    trial: str
    output: str
    where: Mapping[str, int]
    byte: int
    left: float
    right: float
    left_hex: str
    right_hex: str
    differing: int

    def to_json(self) -> dict[str, Any]:
        """The `first` of a result."""
        return {
            "input": self.trial,
            "output": self.output,
            "where": dict(self.where),
            "byte": self.byte,
            "left": self.left,
            "right": self.right,
            "left_hex": self.left_hex,
            "right_hex": self.right_hex,
            "differing": self.differing,
        }


@dataclass(frozen=True, slots=True)
class TwinResult:
    """What one twin showed. size_bytes: bytes compared; differing: those that differ."""

    name: str
    left: str
    right: str
    backend: str
    mode: str
    arch: str
    seed: int
    trials: int
    size_bytes: int
    differing: int
    verdict: str
    first: Difference | None = None
    error: str = ""
    error_class: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of the `results` list of twin's document."""
        return {
            "name": self.name,
            "left": self.left,
            "right": self.right,
            "inputs": self.trials,
            "bytes": self.size_bytes,
            "differing": self.differing,
            "first": self.first.to_json() if self.first else None,
            "verdict": self.verdict,
            "error": self.error or None,
            "error_class": self.error_class or None,
        }

    def to_record(self) -> dict[str, Any]:
        """The same as a result of the record store, under the twin's name."""
        place = {"backend": self.backend, "mode": self.mode, "arch": self.arch, "seed": self.seed}
        counted = {
            "name": "bytes",
            "contract": f"= {self.right}",
            "n": self.size_bytes,
            "identical": self.size_bytes - self.differing,
        }
        return {
            **self.to_json(),
            **place,
            "kernel": self.name,
            "family": "twin",
            "case": f"{self.trials} inputs",
            "outputs": [counted],
        }


def run(
    chosen: Sequence[Twin], device: Device, *, seed: int = 0, level: str = "quick"
) -> Iterator[TwinResult]:
    """Results as they come."""
    for twin in chosen:
        yield run_twin(twin, device, seed=seed, level=level)


def run_twin(twin: Twin, device: Device, *, seed: int = 0, level: str = "quick") -> TwinResult:
    """One twin on every trial up to that level; a deliberate error becomes a verdict ERROR."""
    result = TwinResult(
        name=twin.name,
        left=twin.left,
        right=twin.right,
        backend=device.backend,
        mode=getattr(device, "mode", "run"),
        arch=device.arch,
        seed=seed,
        trials=0,
        size_bytes=0,
        differing=0,
        verdict=ERROR,
    )
    for trial in trials_of(twin, level):
        try:
            left, right = both_sides(twin, trial, device, seed)
            count, first = differences(twin, trial.name, left, right)
        except Dsv4Error as error:
            what = f"on input {trial.name!r}: {error}"
            return replace(result, error=what, error_class=type(error).__name__)
        result = replace(
            result,
            trials=result.trials + 1,
            size_bytes=result.size_bytes + sum(a.nbytes for a in left.values()),
            differing=result.differing + count,
            first=result.first or first,
        )
    return replace(result, verdict=FAIL if result.differing or not result.trials else PASS)


def both_sides(twin: Twin, trial: Trial, device: Device, seed: int = 0) -> tuple[Outputs, Outputs]:
    """The outputs of the left and the right side on one trial, from the same arrays."""
    inputs = trial.make(generator(f"twin {twin.name}", trial.name, "inputs", seed))
    for value in inputs.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    left, right = (Bench(device, byte) for byte in POISON_BYTES)
    return twin.run_left(left, inputs), twin.run_right(right, inputs)


def differences(
    twin: Twin, trial: str, left: Outputs, right: Outputs
) -> tuple[int, Difference | None]:
    """How many bytes differ, and the first element that does.

    Errors: SpecError when the sides return other outputs, shapes or types: then the twin is wrong.
    """
    if set(left) != set(right) or not left:
        raise SpecError(
            f"twin {twin.name}: left gives {', '.join(left) or 'nothing'},"
            f" right gives {', '.join(right) or 'nothing'}"
        )
    total, first = 0, None
    for name, mine in left.items():
        other = right[name]
        if mine.shape != other.shape or mine.dtype != other.dtype or not mine.size:
            raise SpecError(
                f"twin {twin.name}: {name} is {mine.dtype} {list(mine.shape)} on the left,"
                f" {other.dtype} {list(other.shape)} on the right"
            )
        wrong = _bytes_of(mine) != _bytes_of(other)
        count = int(wrong.sum())
        total += count
        if count and first is None:
            index = int(wrong.any(axis=1).argmax())
            first = _locate(twin, trial, name, mine, other, index, count)
    return total, first


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """One row of bytes per element."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)


def _locate(
    twin: Twin, trial: str, name: str, left: np.ndarray, right: np.ndarray, index: int, count: int
) -> Difference:
    place = np.unravel_index(index, left.shape)
    axes, fmt = _axes_and_format(twin, name, left)
    return Difference(
        trial=trial,
        output=name,
        where={axis: int(i) for axis, i in zip(axes, place, strict=True)},
        byte=index * left.itemsize,
        left=_value(left[place], fmt),
        right=_value(right[place], fmt),
        left_hex=_hex(left[place]),
        right_hex=_hex(right[place]),
        differing=count,
    )


def _axes_and_format(twin: Twin, name: str, array: np.ndarray) -> tuple[tuple[str, ...], str]:
    """Axis names and format of an output, as the first kernel declares them that has it.

    A side may add words after an output's name.
    """
    for kernel in twin.kernels:
        for arg in registry.spec(kernel).outputs:
            if arg.name == name.partition(" ")[0] and len(arg.axes) == array.ndim:
                return arg.axes, arg.fmt.name if arg.fmt.storage == str(array.dtype) else ""
    return tuple(f"axis{i}" for i in range(array.ndim)), ""


def _value(bits: Any, fmt: str) -> float:
    return float(decode(np.asarray(bits), fmt)) if fmt in ("bf16", "f16") else float(bits)


def _hex(bits: Any) -> str:
    raw = np.asarray(bits)
    return f"{int(raw.view(f'u{raw.dtype.itemsize}')):#0{2 + 2 * raw.dtype.itemsize}x}"

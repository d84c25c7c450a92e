"""One case of one kernel set up and held still: arrays, oracle, launch, rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.runtime.device import Device
from dsv4.runtime.launch import Launch, bind_shape, prepare
from dsv4.spec import KernelSpec
from lab.arrays import Guarded
from lab.cases import Case, array_shape, inputs_of, scalars_of
from lab.compare.census import POISON_BYTES
from lab.compare.diff import OutputDiff, compare
from lab.oracles import Reference, as_values, reference
from oracle.formats import FORMATS, decode, encode


class Stand:
    """A case on a device, with its inputs, its oracle's values, and what the last launch gave.

    inputs: stored bits by name. shape: axes, options and scalars. expected: the oracle's outputs.
    Errors: SpecError, CompileError or LaunchError where the case does not fit.
    """

    def __init__(self, spec: KernelSpec, case: Case, device: Device, seed: int = 0) -> None:
        """Make the arrays and ask the oracle; nothing is launched yet."""
        self.spec = spec
        self.case = case
        self.device = device
        self.named = scalars_of(spec, case)
        self.inputs = inputs_of(spec, case, seed)
        bound = {**case.axes, **self.named}
        shapes = {a.name: array_shape(a, bound) for a in spec.arrays}
        self.shape: Shape = bind_shape(spec, shapes, self.named)
        self.expected: dict[str, Reference] = reference(spec, self.inputs, self.shape)
        self.arrays = {
            a.name: Guarded(device, a, shapes[a.name], pad=case.pad.get(a.name, 0))
            for a in spec.arrays
        }
        self.bits: dict[str, np.ndarray] = {}
        self._launch: Launch | None = None

    def fill(self) -> None:
        """Restore every input and poison every output."""
        for arg in self.spec.arrays:
            if arg.role == "out":
                self.arrays[arg.name].poison(POISON_BYTES[0])
            else:
                self.arrays[arg.name].store(self.inputs[arg.name])

    def prepared(self, device: Any = None) -> Launch:
        """A checked launch on these arrays."""
        views = {n: a.array for n, a in self.arrays.items()}
        return prepare(self.spec, device=device or self.device, **views, **self.named)

    def launch(self) -> dict[str, np.ndarray]:
        """The outputs' stored bits after one launch on fresh inputs."""
        if self._launch is None:
            self._launch = self.prepared()
        self.fill()
        self._launch.run()
        self.device.synchronize()
        self.bits = {a.name: self.arrays[a.name].bits() for a in self.spec.outputs}
        return self.bits

    def rebuild(self, define: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
        """Build from the sources as they are now, with these constants on top, and launch."""
        constants = self.spec.constants
        extra = dict(define or {})
        self.spec = replace(self.spec, constants=lambda s: {**constants(s), **extra})
        self._launch = None
        return self.launch()

    def compared(self, name: str) -> OutputDiff:
        """The comparison of one output with the oracle."""
        arg, expected = self.spec.arg(name), self.expected[name]
        return compare(
            self.bits[name],
            expected.value,
            name=name,
            fmt=arg.fmt.name,
            axes=arg.axes,
            contract=self.spec.contract[name],
            magnitude=expected.magnitude,
            shape=self.shape,
            tile=self.spec.writes.get(name),
        )

    def values(self, name: str) -> np.ndarray:
        """An input or a launched output as numbers: floats and float codes decoded."""
        arg = self.spec.arg(name)
        raw = self.bits[name] if name in self.bits else self.inputs[name]
        if arg.fmt.name in FORMATS:
            return decode(raw, arg.fmt.name)
        return as_values(raw, arg.fmt)

    def rounded(self, name: str) -> np.ndarray:
        """The oracle's value of an output rounded once to its format."""
        arg, value = self.spec.arg(name), self.expected[name].value
        if arg.fmt.name not in FORMATS:
            return np.asarray(value)
        coded = value.dtype == np.dtype(arg.fmt.storage) and arg.fmt.name != "f64"
        return decode(value if coded else encode(value, arg.fmt.name), arg.fmt.name)

    def names(self) -> dict[str, Any]:
        """What a prompt starts with, made anew after each launch.

        With one output `got`, `ref`, `ref64` and `diff` are arrays, with several namespaces.
        """
        got = {a.name: self.values(a.name) for a in self.spec.outputs if a.name in self.bits}
        ref = {n: self.rounded(n) for n in got}
        ref64 = {n: self.expected[n].value for n in got}
        with np.errstate(all="ignore"):
            diff = {n: _difference(got[n], ref64[n]) for n in got}
        alone = next(iter(got)) if len(got) == 1 else ""
        groups = {"got": got, "ref": ref, "ref64": ref64, "diff": diff}
        return {
            **{a.name: self.input_values(a.name) for a in self.spec.inputs},
            **{k: v[alone] if alone else SimpleNamespace(**v) for k, v in groups.items()},
            "bits": SimpleNamespace(**{**self.inputs, **self.bits}),
            "shape": self.shape,
            "spec": self.spec,
            "case": self.case,
        }

    def input_values(self, name: str) -> np.ndarray:
        """An input as numbers, as it was before the launch."""
        arg = self.spec.arg(name)
        raw = self.inputs[name]
        return decode(raw, arg.fmt.name) if arg.fmt.name in FORMATS else as_values(raw, arg.fmt)


def _difference(got: np.ndarray, ref: np.ndarray) -> np.ndarray:
    if got.shape != ref.shape or ref.dtype == np.uint8:
        return np.asarray(got != ref) if got.shape == ref.shape else got
    return np.asarray(got - ref)

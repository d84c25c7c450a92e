"""Launches for twins: kernels by name on stored bits, outputs fresh, guarded and poisoned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.axes import is_name
from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import prepare
from dsv4.spec import Format, KernelSpec
from lab.arrays import Guarded
from lab.cases import array_shape

Outputs = dict[str, np.ndarray]


class Bench:
    """One side's view of a device.

    poison: the byte that fresh outputs are filled with; the two sides use different ones, so that
    an element nobody writes differs.
    """

    def __init__(self, device: Device, poison: int) -> None:
        """Nothing is allocated yet."""
        self.device = device
        self._poison = poison

    def put(self, array: np.ndarray) -> Any:
        """A copy on the device, to be used by many launches or to be sliced."""
        return self.device.to_device(array)

    def get(self, array: Any) -> np.ndarray:
        """A contiguous copy of a device array on the host."""
        return np.ascontiguousarray(self.device.to_numpy(array))

    def fresh(self, shape: tuple[int, ...], fmt: Format) -> Any:
        """A poisoned device array, to be passed as an output by hand."""
        made = self.device.empty(shape, fmt)
        made[...] = np.full(fmt.size_bytes, self._poison, np.uint8).view(fmt.storage)[0]
        return made

    def run(self, kernel: str, **content: Any) -> Outputs:
        """The outputs of one launch as stored bits.

        content: arrays (NumPy or on the device), scalars, options, and axes that no input shows.
        Outputs are made here unless passed; an array that is updated in place is copied first.
        Errors: LaunchError, also when a guard was damaged.
        """
        spec = registry.spec(kernel)
        named = {k: v for k, v in content.items() if not _is_array(v) and not k.isupper()}
        axes = {k: v for k, v in content.items() if k.isupper()}
        arrays = {k: self._on_device(v) for k, v in content.items() if _is_array(v)}
        shapes = self._shapes(spec, arrays, {**axes, **_defaults(spec), **named})
        made: dict[str, Guarded] = {}
        for arg in spec.outputs:
            given = arrays.get(arg.name)
            if (given is None) == (arg.role == "inout"):
                continue  # an output made by the caller; or missing content, which prepare refuses
            made[arg.name] = Guarded(self.device, arg, shapes[arg.name])
            if given is None:
                made[arg.name].poison(self._poison)
            else:
                made[arg.name].array[...] = given
            arrays[arg.name] = made[arg.name].array
        prepare(spec, device=self.device, **arrays, **named).run()
        self.device.synchronize()
        if damaged := [n for n, a in made.items() if a.damage().any]:
            raise LaunchError(f"{kernel} wrote beyond {', '.join(damaged)}")
        return {a.name: self.get(arrays[a.name]) for a in spec.outputs}

    def _on_device(self, array: Any) -> Any:
        return array if isinstance(array, self.device.xp.ndarray) else self.put(array)

    @staticmethod
    def _shapes(
        spec: KernelSpec, arrays: Mapping[str, Any], known: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        bound = dict(known)
        for arg in spec.arrays:
            if arg.name in arrays:
                sizes = zip(arg.axes, arrays[arg.name].shape, strict=False)
                bound.update({axis: size for axis, size in sizes if is_name(axis)})
        try:
            return {a.name: array_shape(a, bound) for a in spec.outputs}
        except SpecError as error:
            raise SpecError(
                f"{spec.name}: the shape of an output does not follow from the inputs: {error}\n"
                "  pass the missing axis by keyword"
            ) from None


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0


def _defaults(spec: KernelSpec) -> dict[str, int]:
    return {o.name: o.default for o in spec.options}

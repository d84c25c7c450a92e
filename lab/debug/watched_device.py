"""A device whose launches are seen, and what each launch of an engine is called.

An engine asks its device for everything that it computes. A stand-in for the device therefore sees
every launch of a forward pass, on whichever path the engine takes, and the engine knows nothing of
it. A launch is named after the weight that it reads, or after the one that was read last.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol

from dsv4.axes import Shape
from dsv4.engine.engine import Engine
from dsv4.engine.weights import DenseSlab, Fp4Bank, HyperWeights, LayerWeights, arrays_of
from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import bind_shape
from dsv4.spec import Format, Geometry, KernelSpec

_WHOLE = (DenseSlab, Fp4Bank, HyperWeights)  # parts whose arrays are one weight


@dataclass(frozen=True, slots=True)
class Call:
    """One launch as it is sent. named: scalars and options; shape: with the axes."""

    spec: KernelSpec
    arrays: Mapping[str, Any]
    named: Mapping[str, Any]
    shape: Shape


class Watcher(Protocol):
    """What sees the launches of a pass. `run` sends what was asked for."""

    def launch(self, call: Call, run: Callable[[], None]) -> None:
        """A kernel."""

    def product(self, w: Any, x: Any, out: Any, run: Callable[[], None]) -> None:
        """The library's product out = x w^T."""


class WatchedDevice:
    """A device that tells a watcher of every launch, when there is one.

    New arrays hold zeros, so that what nothing wrote is the same in every pass.
    """

    def __init__(self, device: Device) -> None:
        """Watch a device; all that is not launched is its own affair."""
        self.device = device
        self.watcher: Watcher | None = None

    def __getattr__(self, name: str) -> Any:
        """Everything else, as the device has it."""
        return getattr(self.device, name)

    def empty(self, shape: Sequence[int], fmt: Format) -> Any:
        """An array of zeros."""
        made = self.device.empty(shape, fmt)
        made[...] = 0
        return made

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """A call that launches through the watcher of the moment."""
        run = self.device.bind(spec, constants, geometry, values)

        def shown() -> None:
            if self.watcher is None:
                run()
            else:
                self.watcher.launch(call_of(spec, constants, values), run)

        return shown

    def gemm_bf16(self, w: Any, x: Any, out: Any) -> None:
        """The library's product, through the watcher of the moment."""

        def run() -> None:
            self.device.gemm_bf16(w, x, out)

        if self.watcher is None:
            run()
        else:
            self.watcher.product(w, x, out, run)


def call_of(spec: KernelSpec, constants: Mapping[str, int], values: Sequence[Any]) -> Call:
    """The call behind a bound launch: options are read back from the build that they chose.

    Errors: SpecError when no choice of options gives these constants.
    """
    given = dict(zip((a.name for a in spec.args), values, strict=True))
    arrays = {a.name: given[a.name] for a in spec.arrays}
    shapes = {name: tuple(int(n) for n in array.shape) for name, array in arrays.items()}
    scalars = {a.name: given[a.name].item() for a in spec.scalars}
    for choice in itertools.product(*(option.choices for option in spec.options)):
        options = dict(zip((o.name for o in spec.options), choice, strict=True))
        try:
            shape = bind_shape(spec, shapes, {**scalars, **options})
        except LaunchError:  # not for this choice
            continue
        if dict(spec.constants(shape)) == dict(constants):
            return Call(spec, arrays, {**scalars, **options}, shape)
    raise SpecError(
        f"{spec.name}: a launch was built with {dict(constants)}\n"
        f"  no options of the declaration give that\n  declared in {spec.declared_at}\n"
        "  make every option a build constant"
    )


@dataclass
class Places:
    """What launches of an engine are called, in the order of a pass: `layer.2.wq_b.rope`.

    begins, ends, names: the weights by their addresses. before: what comes before every name.
    """

    begins: list[int]
    ends: list[int]
    names: list[str]
    before: str = ""
    _last: str = "entry"
    _counts: dict[str, int] = field(default_factory=dict)

    def place(self, addresses: Sequence[int], what: str) -> str:
        """The name of a launch on arrays at these addresses; one that comes again is numbered."""
        found = (self._weight(address) for address in addresses)
        self._last = next((name for name in found if name), self._last)
        name = f"{self.before}{self._last}.{what}"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _weight(self, address: int) -> str:
        index = bisect.bisect_right(self.begins, address) - 1
        return self.names[index] if index >= 0 and address < self.ends[index] else ""


def places_of(engine: Engine) -> Places:
    """Fresh names for one pass of an engine."""
    found: list[tuple[int, int, str]] = []
    for stage in engine.stages:
        parts: list[tuple[str, Any]] = [(f"layer.{w.layer}", w) for w in stage.layers]
        parts += [("embed", stage.embed), ("head", stage.head), ("exit", stage.exit)]
        for name, part in parts:
            for at, array in _weights(name, part):
                begin = stage.device.address(array)
                found.append((begin, begin + int(array.nbytes), at))
    found.sort()
    return Places([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])


def _weights(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Every array of a part, under the name of the weight that it belongs to."""
    if isinstance(part, _WHOLE) or not is_dataclass(part) or isinstance(part, type):
        yield from ((name, array) for array in arrays_of(part))
        return
    for f in fields(part):
        if not (isinstance(part, LayerWeights) and f.name == "layer"):
            yield from _weights(f"{name}.{f.name}", getattr(part, f.name))

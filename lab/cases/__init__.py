"""One module per kernel family: the inputs it is tried on.

A case names its purpose. Axes are capitals (`T=7`), everything else is a scalar, an option or the
content of an array (a fill of `lab.cases.fills`, a number, or an array). Values come from a
generator keyed by kernel, case, argument and seed, so no case depends on another.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.axes import Shape, evaluate
from dsv4.errors import SpecError
from dsv4.spec import Arg, KernelSpec
from lab.cases.fills import Fill, constant, default_fill

LEVELS = ("quick", "full", "stress")


@dataclass(frozen=True, slots=True, init=False)
class Case:
    """One input set of a kernel.

    level: "quick" runs on every commit, "full" takes minutes, "stress" longer.
    check: whether check mode runs it too (small sizes only; it costs up to 100 times as much).
    pad: extra elements between rows of an argument declared strided.
    """

    name: str
    level: str
    check: bool
    axes: Mapping[str, int]
    values: Mapping[str, Any]
    pad: Mapping[str, int]

    def __init__(
        self,
        name: str,
        *,
        level: str = "quick",
        check: bool | None = None,
        pad: Mapping[str, int] | None = None,
        **content: Any,
    ) -> None:
        """Sort the keywords into axes (capitals) and values (the rest)."""
        if level not in LEVELS:
            raise SpecError(f"case {name}: no level {level!r}; there are {', '.join(LEVELS)}")
        axes = {k: int(v) for k, v in content.items() if k.isupper()}
        size = int(np.prod([max(1, v) for v in axes.values()])) if axes else 1
        set_ = functools.partial(object.__setattr__, self)
        set_("name", name)
        set_("level", level)
        set_("check", size <= 200_000 and level == "quick" if check is None else check)
        set_("axes", axes)
        set_("values", {k: v for k, v in content.items() if not k.isupper()})
        set_("pad", dict(pad or {}))

    @property
    def label(self) -> str:
        """Name and axes as a test identifier: `tail-T=7-D=4096`."""
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.axes.items())])


CaseMaker = Callable[[], Iterator[Case]]
_MAKERS: dict[str, CaseMaker] = {}


def cases_for(*kernels: str) -> Callable[[CaseMaker], CaseMaker]:
    """Register a generator of cases for these kernels."""

    def register(maker: CaseMaker) -> CaseMaker:
        for name in kernels:
            if name in _MAKERS:
                raise SpecError(f"cases for {name} are declared twice")
            _MAKERS[name] = maker
        return maker

    return register


@functools.cache
def cases(kernel: str) -> tuple[Case, ...]:
    """All cases of a kernel. Errors: SpecError when it has none or repeats a name."""
    spec = registry.spec(kernel)
    module = f"lab.cases.{spec.family}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    if kernel not in _MAKERS:
        raise SpecError(
            f"{kernel} has no cases\n  declared in {spec.declared_at}\n"
            f"  add @cases_for({kernel!r}) to lab/cases/{spec.family}.py"
        )
    found = tuple(_MAKERS[kernel]())
    labels = [c.label for c in found]
    if len(set(labels)) != len(labels):
        raise SpecError(f"{kernel}: two cases share a name: {sorted(labels)}")
    return found


def generator(kernel: str, case: str, argument: str, seed: int) -> np.random.Generator:
    """Random numbers that depend on these four and nothing else."""
    text = f"{kernel}/{case}/{argument}/{seed}".encode()
    key = np.frombuffer(hashlib.sha256(text).digest()[:16], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def scalars_of(spec: KernelSpec, case: Case) -> dict[str, Any]:
    """Scalars and options of a case, defaults filled in. Errors: SpecError on unknown names."""
    options = {o.name: case.values.get(o.name, o.default) for o in spec.options}
    scalars: dict[str, Any] = {}
    for arg in spec.scalars:
        if arg.name not in case.values:
            raise SpecError(f"{spec.name} case {case.name}: give a value for scalar {arg.name}")
        scalars[arg.name] = case.values[arg.name]
    known = {*options, *scalars, *(a.name for a in spec.arrays)}
    if unknown := set(case.values) - known:
        raise SpecError(
            f"{spec.name} case {case.name}: {', '.join(sorted(unknown))} is no argument;"
            f" it has {', '.join(sorted(known))}"
        )
    return {**options, **scalars}


def array_shape(arg: Arg, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an array argument for bound axes."""
    return tuple(int(evaluate(a, values)) for a in arg.axes)


def inputs_of(spec: KernelSpec, case: Case, seed: int) -> dict[str, np.ndarray]:
    """The content of every in and inout array, as stored bits."""
    bound = {**case.axes, **scalars_of(spec, case)}
    arrays: dict[str, np.ndarray] = {}
    for arg in spec.inputs:
        shape = array_shape(arg, bound)
        rng = generator(spec.name, case.label, arg.name, seed)
        wanted = case.values.get(arg.name)
        if isinstance(wanted, np.ndarray):
            content = wanted
        else:
            fill: Fill = (
                default_fill(arg.fmt)
                if wanted is None
                else wanted
                if callable(wanted)
                else constant(wanted)
            )
            content = fill(rng, shape, arg.fmt, Shape(bound))
        if content.shape != shape or content.dtype != np.dtype(arg.fmt.storage):
            raise SpecError(
                f"{spec.name} case {case.name}: {arg.name} was filled with {content.dtype}"
                f" {list(content.shape)}, it is {arg.fmt.storage} {list(shape)}"
            )
        arrays[arg.name] = content
    return arrays

"""The named stages of a kernel: the oracle's values, where the source records them, and places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4.axes import evaluate
from dsv4.errors import SpecError
from dsv4.runtime.sources import cuda_root, include_closure
from dsv4.spec import KernelSpec
from lab.debug.stand import Stand
from lab.oracles import reference

_PROBE_LINE = re.compile(r'\bPROBE\(\s*"(\w+)"')


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the oracle: its values, what each dimension is, whether it is prescribed."""

    name: str
    axes: tuple[str, ...]
    values: np.ndarray
    exact: bool


def stages_of(stand: Stand) -> dict[str, Stage]:
    """The oracle's stages of a case, by name, in their order."""
    found: dict[str, Stage] = {}

    def keep(name: str, value: np.ndarray, axes: str, *, exact: bool = False) -> None:
        values = np.asarray(value, np.float64)
        found[name] = Stage(name, tuple(axes.split()), values, exact)

    reference(stand.spec, stand.inputs, stand.shape, probe=keep)
    for stage in found.values():
        declared = tuple(int(evaluate(a, stand.shape)) for a in stage.axes)
        if declared != stage.values.shape:
            raise SpecError(
                f"{stand.spec.name}: stage {stage.name} has shape {list(stage.values.shape)},"
                f" its axes {' '.join(stage.axes)} say {list(declared)}\n"
                f"  correct the call of probe in oracle/{stand.spec.family}.py"
            )
    return found


def probe_lines(spec: KernelSpec) -> dict[str, str]:
    """Where each stage's first PROBE stands, as `file:line`, in the source and what it includes."""
    found: dict[str, str] = {}
    for path in include_closure(cuda_root() / f"{spec.family}.cu"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in _PROBE_LINE.finditer(line):
                found.setdefault(match[1], f"{path.name}:{number}")
    return found


def read_at(text: str) -> dict[str, int]:
    """Axis and index from text such as "T=3,D=448". Errors: SpecError for anything else."""
    found: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, number = (p.strip() for p in part.partition("="))
        if not name.isidentifier() or not equals or not number.isdigit():
            raise SpecError(f"--at {text!r}: {part!r} is no place; write T=3,D=448")
        found[name] = int(number)
    return found


def check_at(stand: Stand, at: Mapping[str, int]) -> None:
    """Refuse an element that no output has. Errors: SpecError naming the axes."""
    axes = {a: s for arg in stand.spec.outputs
            for a, s in zip(arg.axes, stand.arrays[arg.name].shape, strict=True)}  # fmt: skip
    for name, index in at.items():
        if name not in axes:
            raise SpecError(
                f"{stand.spec.name}: --at {name}={index}, but its outputs have the axes"
                f" {', '.join(axes)}"
            )
        if index >= axes[name]:
            raise SpecError(f"{stand.spec.name}: --at {name}={index}, but {name} is {axes[name]}")


def followed(stage: Stage, shape: Mapping[str, Any], at: Mapping[str, int]) -> int | None:
    """The element of a stage on the way to an output element; None when it does not say.

    An axis such as ceil(K/128) is followed by the block that K's index lies in.
    """
    if not at:
        return None
    place = []
    for axis, size in zip(stage.axes, stage.values.shape, strict=True):
        names = [n for n in at if re.search(rf"\b{n}\b", axis)]
        if size == 1:
            place.append(0)
        elif len(names) == 1:
            bound = {**shape, names[0]: at[names[0]] + 1}
            place.append(int(evaluate(f"ceil({axis})", bound)) - 1)
        else:
            return None
    inside = all(0 <= i < s for i, s in zip(place, stage.values.shape, strict=True))
    return int(np.ravel_multi_index(place, stage.values.shape)) if inside and place else None

"""What the declarations and cases leave out: symbols nobody declares, sizes nobody tries."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from dsv4 import registry
from dsv4.axes import evaluate
from dsv4.errors import SpecError
from dsv4.runtime.sources import cuda_root
from dsv4.spec import KernelSpec
from lab.cases import cases, scalars_of
from lab.cases.select import is_adversarial

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Between `void` and the name: a macro that says how many blocks are a cluster, then the bounds.
_KERNEL = re.compile(
    r"__global__\s+void\s+(?:[A-Z_]+(?:\([^()]*\))?\s+)?(?:__launch_bounds__\s*\([^()]*\)\s*)?"
    r"(\w+)\s*\("
)
# Arguments of these formats hold ids, counts or copied bytes, not numbers to be rounded.
_NO_NUMBERS = ("i32", "i64", "u8")


def symbols_in(source: Path) -> list[str]:
    """The kernels that a `.cu` defines, in its order."""
    return _KERNEL.findall(_COMMENT.sub("", source.read_text(encoding="utf-8")))


def undeclared_symbols() -> list[tuple[str, str]]:
    """(file name, symbol) of every kernel in `cuda/` that no declaration names."""
    declared = {(k.spec.family, k.spec.symbol) for k in registry.kernels().values()}
    return [
        (source.name, symbol)
        for source in sorted(cuda_root().glob("*.cu"))
        for symbol in symbols_in(source)
        if (source.stem, symbol) not in declared
    ]


def gaps(spec: KernelSpec) -> list[str]:
    """What no case of this kernel tries, a clause each; empty when everything is covered."""
    found = []
    try:
        known = cases(spec.name)
    except SpecError:
        return ["no cases"]
    if any(a.fmt.name not in _NO_NUMBERS for a in spec.inputs):
        if not any(is_adversarial(c, spec) for c in known):
            found.append("no adversarial case: none chooses the values of a number input")
    for axis, sizes in axis_sizes(spec).items():
        if not has_tail(sizes) and may_have_tail(spec, axis, sizes):
            shown = ", ".join(map(str, sorted(sizes)[:6]))
            found.append(f"axis {axis} never off a multiple (sizes {shown})")
    for option in spec.options:
        tried = {c.values.get(option.name, option.default) for c in known}
        if untried := [str(c) for c in option.choices if c not in tried]:
            found.append(f"option {option.name} never {', '.join(untried)}")
    return found


def axis_sizes(spec: KernelSpec) -> dict[str, set[int]]:
    """Every size that each axis has in some case."""
    sizes: dict[str, set[int]] = {}
    for case in cases(spec.name):
        for axis, size in case.axes.items():
            sizes.setdefault(axis, set()).add(size)
    return sizes


def has_tail(sizes: set[int]) -> bool:
    """Whether some size is off a multiple: odd in the unit that all sizes share, and not one unit.

    The unit is what the kernel demands (a block of 128, say), seen from the sizes tried.
    """
    unit = math.gcd(*sizes)
    return any(size // unit % 2 == 1 and size > unit for size in sizes)


def may_have_tail(spec: KernelSpec, axis: str, sizes: set[int]) -> bool:
    """Whether the declared conditions allow a size off a multiple: not for a power of two, say."""
    unit = math.gcd(*sizes)
    odd = [unit * factor for factor in (3, 5, 7, 9, 17, 33)]
    return any(
        _allowed(spec, {**case.axes, **scalars_of(spec, case), axis: size})
        for case in cases(spec.name)
        for size in odd
    )


def _allowed(spec: KernelSpec, bound: dict[str, Any]) -> bool:
    try:
        return all(evaluate(r.condition, bound) for r in spec.requires)
    except SpecError:
        return False

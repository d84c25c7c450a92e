"""Finds every declared kernel. Imports no CuPy and no oracle, so it is instant."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import dsv4.kernels
from dsv4.errors import SpecError
from dsv4.spec import Kernel, KernelSpec


@functools.lru_cache(maxsize=1)
def kernels() -> Mapping[str, Kernel]:
    """Every kernel by name, families in alphabetical order, kernels in declared order."""
    found: dict[str, Kernel] = {}
    for module_info in sorted(pkgutil.iter_modules(dsv4.kernels.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"dsv4.kernels.{module_info.name}")
        for value in vars(module).values():
            if not isinstance(value, Kernel):
                continue
            spec = value.spec
            if spec.family != module_info.name:
                raise SpecError(
                    f"{spec.name}: declared in {spec.declared_at}, but its family is"
                    f" {spec.family!r}\n  a family is declared in dsv4/kernels/<family>.py"
                )
            if spec.name in found:
                raise SpecError(f"{spec.name} is declared twice, second in {spec.declared_at}")
            found[spec.name] = value
    return MappingProxyType(found)


def spec(name: str) -> KernelSpec:
    """The declaration of that kernel. Errors: SpecError with near matches."""
    try:
        return kernels()[name].spec
    except KeyError:
        raise SpecError(_unknown(name)) from None


def match(patterns: Sequence[str]) -> list[KernelSpec]:
    """Kernels matching any pattern: exact name, family, glob or prefix; all without patterns.

    Errors: SpecError for a pattern that matches nothing.
    """
    every = [k.spec for k in kernels().values()]
    if not patterns:
        return every
    chosen: dict[str, KernelSpec] = {}
    for pattern in patterns:
        hits = [s for s in every if pattern in (s.name, s.family)]
        hits = hits or [s for s in every if fnmatch.fnmatchcase(s.name, pattern)]
        hits = hits or [s for s in every if s.name.startswith(pattern)]
        if not hits:
            raise SpecError(_unknown(pattern))
        chosen.update({s.name: s for s in hits})
    return [s for s in every if s.name in chosen]


def families() -> list[str]:
    """Every family name, sorted."""
    return sorted({k.spec.family for k in kernels().values()})


def _unknown(name: str) -> str:
    known = list(kernels())
    near = difflib.get_close_matches(name, known + families(), n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"{len(known)} kernels are declared"
    return f"no kernel matches {name!r}; {hint}\n  see them with: dsv4-lab list"

"""The one language that picks cases: `T=1,D=4096`, `T>=128`, `tail,adversarial`.

A pattern is a comma-separated list of conditions that must all hold; several patterns are
alternatives. A condition compares an axis, a scalar or an option with a number:
`= == != < <= > >=`. A case without that name does not match.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import operator
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4.errors import SpecError
from dsv4.spec import KernelSpec
from lab.cases import LEVELS, Case

# The word that stands for every case that chooses what a number array holds.
ADVERSARIAL: Final = "adversarial"

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_CONDITION = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|!=|==|=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a pattern."""

    name: str
    comparison: str
    number: float

    def holds(self, case: Case, spec: KernelSpec | None) -> bool:
        """Whether the case has that axis, scalar or option and it compares so."""
        values = {**_defaults(spec), **case.values, **case.axes}
        value = values.get(self.name)
        if not isinstance(value, int | float):
            return False
        return _OPERATORS[self.comparison](value, self.number)


@functools.cache
def parse(pattern: str) -> tuple[Condition, ...]:
    """The conditions of a pattern. Errors: SpecError showing what a condition looks like."""
    conditions = []
    for part in pattern.split(","):
        match = _CONDITION.fullmatch(part)
        number = _number(match[3]) if match else None
        if match is None or number is None:
            raise SpecError(
                f"case filter {pattern!r}: {part.strip()!r} is no condition\n"
                "  a condition compares an axis with a number: -p 'T=1,D=4096', -p 'T>=128'"
            )
        conditions.append(Condition(match[1], match[2], number))
    return tuple(conditions)


def split_names(names: Iterable[str], known: Container[str] = ()) -> tuple[str, ...]:
    """Case names from `-c` values, each a comma-separated list.

    known: names there are; one that has commas itself stays whole.
    """
    found: list[str] = []
    for text in names:
        parts = text.split(",")
        while parts:
            runs = ((n, ",".join(parts[:n]).strip()) for n in range(len(parts), 0, -1))
            taken, name = next((r for r in runs if r[1] in known), (1, parts[0].strip()))
            found.append(name)
            parts = parts[taken:]
    return tuple(dict.fromkeys(name for name in found if name))


def select(
    cases: Sequence[Case],
    patterns: Sequence[str] = (),
    names: Sequence[str] = (),
    level: str | None = None,
    *,
    spec: KernelSpec | None = None,
) -> list[Case]:
    """The cases of one kernel that any pattern and any name asks for, in their order.

    names: exact, with its own commas as well, else glob, else prefix; or `adversarial`. level: the
    highest to take; None takes quick, and whatever the level of a case that is named exactly. spec:
    the kernel's declaration, whose options have values in every case.
    Errors: SpecError for what is no pattern or level.
    """
    if level is not None and level not in LEVELS:
        raise SpecError(f"no level {level!r}; there are {', '.join(LEVELS)}")
    parsed = [parse(p) for p in patterns]
    wanted = split_names(names, {case.name for case in cases})
    named = [case for name in wanted for case in _named(cases, name, spec)]
    highest = LEVELS.index(level or "quick")
    return [
        case
        for case in cases
        if (LEVELS.index(case.level) <= highest or (level is None and case.name in wanted))
        and (not wanted or case in named)
        and (not parsed or any(all(c.holds(case, spec) for c in p) for p in parsed))
    ]


def require_known(
    kernels: Iterable[tuple[KernelSpec, Sequence[Case]]],
    patterns: Sequence[str] = (),
    names: Sequence[str] = (),
) -> None:
    """Refuse a case name or axis that none of the chosen kernels has.

    Errors: SpecError with near matches.
    """
    chosen = list(kernels)
    known = sorted({c.name for _, cases in chosen for c in cases} | {ADVERSARIAL})
    for name in split_names(names, known):
        if name != ADVERSARIAL and not any(_named(cases, name, spec) for spec, cases in chosen):
            raise SpecError(_unknown("case", name, known, chosen))
    axes = sorted(
        {
            name
            for spec, cases in chosen
            for case in cases
            for name in (*case.axes, *case.values, *_defaults(spec))
        }
    )
    for condition in (c for p in patterns for c in parse(p)):
        if condition.name not in axes:
            raise SpecError(_unknown("axis, scalar or option", condition.name, axes, chosen))


def is_adversarial(case: Case, spec: KernelSpec | None = None) -> bool:
    """Whether the case chooses the values of an array of numbers (ids and sizes do not count)."""
    if spec is None:
        return any(callable(v) or hasattr(v, "dtype") for v in case.values.values())
    chosen = (a for a in spec.inputs if a.name in case.values)
    return any(a.fmt.name not in ("i32", "i64", "u8") for a in chosen)


def _named(cases: Sequence[Case], name: str, spec: KernelSpec | None) -> list[Case]:
    if name == ADVERSARIAL:
        return [c for c in cases if is_adversarial(c, spec)]
    hits = [c for c in cases if name in (c.name, c.label)]
    hits = hits or [c for c in cases if fnmatch.fnmatchcase(c.name, name)]
    return hits or [c for c in cases if c.name.startswith(name)]


def _unknown(kind: str, name: str, known: list[str], chosen: list[Any]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"
    where = chosen[0][0].name if len(chosen) == 1 else f"any of {len(chosen)} kernels"
    return f"no {kind} {name!r} in {where}; {hint}\n  see them with: dsv4-lab show KERNEL"


def _defaults(spec: KernelSpec | None) -> dict[str, Any]:
    return {o.name: o.default for o in spec.options} if spec is not None else {}


def _number(text: str) -> float | None:
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None

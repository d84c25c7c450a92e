"""The one case that an interactive command works on."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4.errors import SpecError
from dsv4.spec import KernelSpec
from lab.cases import Case, cases
from lab.cases.select import require_known, select


def one_case(spec: KernelSpec, patterns: Sequence[str], names: Sequence[str]) -> Case:
    """The first case that pattern and name ask for, quick ones first.

    Errors: SpecError with near matches, or when nothing matches.
    """
    known = cases(spec.name)
    require_known([(spec, known)], patterns, names)
    found = select(known, patterns, names, level="stress", spec=spec)
    if not found:
        asked = " ".join([*(f"-p {p}" for p in patterns), *(f"-c {n}" for n in names)])
        raise SpecError(
            f"{spec.name}: no case matches {asked}\n  see them with: dsv4-lab show {spec.name}"
        )
    return next((c for c in found if c.level == "quick"), found[0])

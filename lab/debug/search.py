"""What a search for a smaller failing case holds: the best case so far, and how to try another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.spec import Arg, KernelSpec
from lab.cases import Case
from lab.result import FAIL, PASS, CaseResult
from lab.run import RunOptions, run_case
from oracle.formats import FORMATS

_FAULT: Final = "KernelFault"


class Search:
    """The state of one search: the best case so far, and how to try another."""

    def __init__(
        self,
        spec: KernelSpec,
        device: Device,
        seed: int,
        budget_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """Nothing was run yet; the budget begins now."""
        self.spec = spec
        self.device = device
        self.seed = seed
        self.end = time.monotonic() + budget_s
        self.runs = 0
        self.steps: list[str] = []
        self.tell = tell
        self.wanted = ""
        self.best: Case
        self.result: CaseResult

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() > self.end

    def run(self, case: Case) -> CaseResult:
        """One judged run of a case, without timing."""
        self.runs += 1
        options = RunOptions(seed=self.seed, time=False, relaunch=2)
        return run_case(self.spec, case, self.device, options)

    def begin(self, case: Case) -> None:
        """Run the case as it is. Errors: SpecError when it does not fail."""
        result = self.run(case)
        self.wanted = _kind(result)
        if not self.wanted:
            found = "passes" if result.verdict == PASS else f"ends in {result.error_class}"
            raise SpecError(
                f"{self.spec.name} {case.label} cannot be minimised: it {found} on"
                f" {self.device.name}\n  choose a failing case with -p or -c, or another --mode"
            )
        self.best, self.result = case, result

    def fails(self, case: Case) -> bool:
        """Whether a smaller case fails in the same way; then it is the best so far."""
        try:
            result = self.run(case)
        except (SpecError, LaunchError):
            return False
        if _kind(result) != self.wanted:
            return False
        self.best, self.result = case, result
        return True


def _kind(result: CaseResult) -> str:
    """In which way a case fails; "" when it passes or cannot be run at all."""
    if result.verdict == FAIL:
        return FAIL
    return _FAULT if result.error_class == _FAULT else ""


def sizes_of(spec: KernelSpec, case: Case) -> dict[str, int]:
    """Axes and integer scalars of a case: what a shape is made of."""
    scalars = {a.name for a in spec.scalars if not a.fmt.is_float}
    return {**case.axes, **{k: int(v) for k, v in case.values.items() if k in scalars}}


def case_with(case: Case, sizes: Mapping[str, int], content: Mapping[str, Any]) -> Case:
    """The case at other sizes, with this content."""
    axes = {k: sizes[k] for k in case.axes}
    scalars = {k: v for k, v in sizes.items() if k not in axes}
    values = {**content, **scalars}
    return Case("minimised", level=case.level, check=True, pad=case.pad, **axes, **values)


def is_number(arg: Arg) -> bool:
    """Whether an argument holds numbers in a float format, and not ids."""
    return arg.fmt.name in FORMATS or arg.fmt.name == "e2m1x2"

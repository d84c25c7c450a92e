"""A kernel-diff run: which cases, on which device, one result after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from dsv4.errors import CompileError, LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.spec import Exact, KernelSpec, Ulp, Within
from lab.cases import Case, cases
from lab.cases.select import require_known, select
from lab.result import ERROR, FAIL, PASS, CaseResult
from lab.run import RunOptions, run_case
from lab.weights import Checkpoint, takes_weights, weight_cases

Work = list[tuple[KernelSpec, Case]]


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over results, and the exit code they mean."""

    kernels: int
    cases: int
    passed: int
    failed: int
    errors: int

    def to_json(self) -> dict[str, int]:
        """The `summary` of kernel-diff's document."""
        return {
            "kernels": self.kernels,
            "cases": self.cases,
            "pass": self.passed,
            "fail": self.failed,
            "error": self.errors,
        }


def plan(
    specs: Sequence[KernelSpec],
    *,
    patterns: Sequence[str] = (),
    names: Sequence[str] = (),
    level: str = "quick",
    mode: str = "run",
    weights: Path | None = None,
    tensor: str | None = None,
) -> Work:
    """The cases to run, in order. Errors: SpecError or Refusal when nothing is left.

    Check mode leaves out cases that are too large for it.
    """
    if weights is not None:
        return _weights_plan(specs, weights, tensor)
    require_known([(s, cases(s.name)) for s in specs], patterns, names)
    work = []
    for spec in specs:
        chosen = select(cases(spec.name), patterns, names, level, spec=spec)
        work += [(spec, c) for c in chosen if mode != "check" or c.check]
    return work


def _weights_plan(specs: Sequence[KernelSpec], weights: Path, tensor: str | None) -> Work:
    checkpoint = Checkpoint(weights)
    able = [s for s in specs if takes_weights(s)]
    if not able:
        raise SpecError(
            f"--weights: none of {', '.join(s.name for s in specs)} takes weights\n"
            "  choose a kernel that has a weight argument, such as linear_fp8"
        )
    return [(s, c) for s in able for c in weight_cases(s, checkpoint, tensor)]


def run(
    work: Work, device: Device, options: RunOptions, *, fail_fast: bool = False
) -> Iterator[CaseResult]:
    """Results as they come; a kernel that does not compile gives one ERROR result and is left."""
    broken: set[str] = set()
    for spec, case in work:
        if spec.name in broken:
            continue
        try:
            result = run_case(spec, case, device, options)
        except CompileError as error:
            broken.add(spec.name)
            result = error_result(spec, case, device, options.seed, error)
        yield result
        if fail_fast and result.verdict != PASS:
            return


def run_isolated(
    work: Work,
    device: Device,
    options: RunOptions,
    *,
    again: Callable[[], Work],
    reopen: Callable[[], Device],
    fail_fast: bool = False,
) -> Iterator[CaseResult]:
    """Each case in a process of its own, so that a crash costs one result.

    again and reopen are picklable calls that make the same work and device in the child: cases hold
    functions, which do not travel.
    """
    for index, (spec, case) in enumerate(work):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                result = pool.submit(_run_nth, again, reopen, index, options).result()
            except BrokenProcessPool:
                crash = LaunchError(
                    "the process that ran this case died; run it alone under --mode check"
                )
                result = error_result(spec, case, device, options.seed, crash)
        yield result
        if fail_fast and result.verdict != PASS:
            return


def _run_nth(
    again: Callable[[], Work], reopen: Callable[[], Device], index: int, options: RunOptions
) -> CaseResult:
    return next(run([again()[index]], reopen(), options))


def error_result(
    spec: KernelSpec, case: Case, device: Device, seed: int, error: Exception
) -> CaseResult:
    """A result that says why there is none."""
    return CaseResult(
        kernel=spec.name,
        family=spec.family,
        case=case.name,
        axes=case.axes,
        backend=device.backend,
        mode=getattr(device, "mode", "run"),
        arch=device.arch,
        seed=seed,
        verdict=ERROR,
        error=str(error),
        error_class=type(error).__name__,
    )


def tally(results: Sequence[CaseResult]) -> Tally:
    """Counts by verdict."""
    verdicts = [r.verdict for r in results]
    return Tally(
        kernels=len({r.kernel for r in results}),
        cases=len(results),
        passed=verdicts.count(PASS),
        failed=verdicts.count(FAIL),
        errors=verdicts.count(ERROR),
    )


def parse_contract(text: str) -> Exact | Ulp | Within:
    """A contract from `--what-if` text: "exact", "ulp(2)" or "within(dot, 12)".

    Errors: SpecError for anything else.
    """
    head, _, rest = text.strip().lower().partition("(")
    parts = [p.strip() for p in rest.rstrip(")").split(",") if p.strip()]
    reason = "asked on the command line; reported, never decided on"
    try:
        match head, parts:
            case "exact", []:
                return Exact(reason)
            case "ulp", [n]:
                return Ulp(float(n), reason)
            case "within", [kind, depth]:
                return Within(kind, reason, depth=depth)
    except ValueError:
        pass
    raise SpecError(f"--what-if {text!r} is none of exact, ulp(N), within(KIND, DEPTH)")

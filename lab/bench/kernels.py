"""One case of one kernel: judged, then timed, then looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsv4.engine.switches import resolve_arms
from dsv4.errors import CompileError, Dsv4Error, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import Launch, prepare
from dsv4.spec import KernelSpec
from lab.arrays import Guarded
from lab.bench.chosen import with_options
from lab.bench.clocks import NO_CLOCK, around
from lab.bench.measured import Measured, Pair, paired
from lab.bench.roofs import Roofs
from lab.bench.sampling import Repeated, copies_for, repeated, turn_by_turn
from lab.cases import Case, array_shape, inputs_of, scalars_of
from lab.measure.timing import Timing
from lab.result import ERROR, FAIL, PASS, CaseResult
from lab.run import RunOptions, digest_of, run_case
from lab.session import error_result

Arm = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """A launch on arrays of its own, filled with a case's inputs."""

    launch: Launch
    arrays: Mapping[str, Guarded]


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of a case, judged: its result, and its launches when it may be timed."""

    result: CaseResult
    copies: tuple[Copy, ...] = ()
    again: Repeated | None = None


def bench_case(
    spec: KernelSpec,
    case: Case,
    device: Device,
    roofs: Roofs | None,
    *,
    arms: Sequence[Arm] = ({},),
    seed: int = 0,
    samples: int = 15,
) -> tuple[list[Measured], Pair | None]:
    """The measured arms of a case, sampled turn by turn, and the verdict of the second of two.

    An arm whose contract does not hold has no timing, and two of which one has none no verdict.
    """
    sides = [open_side(spec, case, device, arm, seed) for arm in arms]
    return time_sides(spec, sides, arms, device, roofs, samples)


def time_sides(
    spec: KernelSpec,
    sides: Sequence[Side],
    arms: Sequence[Arm],
    device: Device,
    roofs: Roofs | None,
    samples: int,
) -> tuple[list[Measured], Pair | None]:
    """As `bench_case`, from sides that are open."""
    timed = [side.again for side in sides if side.again is not None]
    taken: list[Timing] = []
    clock = NO_CLOCK
    if timed:
        taken, clock = around(device, lambda: turn_by_turn(timed, samples))
    timings = iter(taken)
    found = []
    for side, arm in zip(sides, arms, strict=True):
        result = side.result
        if side.again is not None:
            result = replace(result, timing=next(timings), roof=roofs.read if roofs else None)
            if not _bytes_held(spec, side):
                why = "the timed launches left other bytes than the judged one"
                result = replace(result, verdict=FAIL, reasons=(*result.reasons, why))
        early = any(copy.launch.geometry.dependent for copy in side.copies)
        found.append(Measured.of_case(result, arm, clock, side.again, starts_early=early))
    return found, paired(found[0], found[1]) if len(found) == 2 else None


def open_side(spec: KernelSpec, case: Case, device: Device, arm: Arm, seed: int) -> Side:
    """The case under an arm: judged by its contract, and made ready when it holds it."""
    chosen = with_options(spec, case, arm)
    try:
        result = run_case(spec, chosen, device, RunOptions(time=False, relaunch=2, seed=seed))
    except CompileError as error:
        return Side(error_result(spec, chosen, device, seed, error))
    if result.verdict != PASS:
        return Side(result)
    try:
        made = copies(spec, chosen, device, seed, result.size_bytes)
        again = repeated(device, [c.launch.run for c in made], result.size_bytes)
    except (Dsv4Error, MemoryError) as error:
        failed = replace(result, verdict=ERROR, error=str(error), error_class=type(error).__name__)
        return Side(failed)
    return Side(result, made, again)


def copies(
    spec: KernelSpec, case: Case, device: Device, seed: int, size_bytes: int
) -> tuple[Copy, ...]:
    """Launches of a case on as many copies of its arrays as make them cold, sent as a step does."""
    early = resolve_arms().starts_early(device)
    named = scalars_of(spec, case)
    inputs = inputs_of(spec, case, seed)
    shapes = {a.name: array_shape(a, {**case.axes, **named}) for a in spec.arrays}
    held = sum(_size(shapes[a.name]) * a.fmt.size_bytes for a in spec.arrays)
    made: list[Copy] = []
    for _ in range(copies_for(size_bytes, held, device.backend)):
        arrays = {
            a.name: Guarded(device, a, shapes[a.name], pad=case.pad.get(a.name, 0), guard=False)
            for a in spec.arrays
        }
        for name, content in inputs.items():
            if made:
                arrays[name].array[...] = made[0].arrays[name].array
            else:
                arrays[name].store(content)
        views: dict[str, Any] = {name: array.array for name, array in arrays.items()}
        launch = prepare(spec, device=device, dependent=early, **views, **named)
        made.append(Copy(launch, arrays))
    device.synchronize()
    return tuple(made)


def arms_of(words: Sequence[str]) -> dict[str, int]:
    """Build options from NAME=NUMBER. Errors: SpecError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value.lstrip("-").isdecimal():
            raise SpecError(
                f"--arm {word} was given\n  a kernel's option is NAME=NUMBER\n"
                "  on the command line\n  write it like --arm threads=256"
            )
        found[name] = int(value)
    return found


def _bytes_held(spec: KernelSpec, side: Side) -> bool:
    """Whether the last copy's outputs are what was judged; an updated array moves on each time."""
    if not spec.repeatable or any(a.role == "inout" for a in spec.arrays):
        return True
    # On host one copy is there and was launched; a graph launched all of them.
    bits = {a.name: side.copies[-1].arrays[a.name].bits() for a in spec.outputs}
    formats = {a.name: a.fmt.name for a in spec.outputs}
    return digest_of(bits, formats) == side.result.output_digest


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

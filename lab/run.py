"""Runs one case of one kernel and judges it: the heart of kernel-diff.

In order: inputs from the case, the oracle's values, guarded and poisoned arrays on the device, the
launch, then every proof that does not depend on the oracle (guards, inputs, relaunch, rows that do
not influence each other), and the comparison of each output with its contract.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsv4.axes import is_name
from dsv4.errors import CompileError, Dsv4Error, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import Launch, bind_shape, prepare
from dsv4.runtime.nvrtc import nvrtc_version
from dsv4.spec import Contract, KernelSpec
from lab.arrays import Damage, Guarded, same_bytes
from lab.cases import Case, array_shape, inputs_of, scalars_of
from lab.compare.census import POISON_BYTES
from lab.compare.diff import OutputDiff, compare
from lab.measure.timing import Timing, copies_for, copy_roof, time_launches
from lab.oracles import Reference, reference
from lab.result import ERROR, FAIL, PASS, CaseResult
from lab.tools.cubin import code_bytes
from lab.turns import turn
from oracle.formats import decode

# What launches a prepared call; the tests of the judge replace it to plant faults.
Launcher = Callable[[Launch, Mapping[str, Guarded]], None]


def launch_plainly(launch: Launch, arrays: Mapping[str, Guarded]) -> None:
    """Run the prepared launch."""
    launch.run()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a case is run.

    relaunch: launches in all, each compared with the first byte by byte. time: whether to time it.
    top: worst rows to keep of each output.
    what_if: a contract to report on beside the declared ones; it never decides.
    turns: other processes use the same GPU, so the part on the device waits for its turn.
    """

    seed: int = 0
    relaunch: int = 3
    guard: bool = True
    poison: bool = True
    time: bool = True
    samples: int = 15
    top: int = 5
    what_if: Contract | None = None
    launcher: Launcher = launch_plainly
    turns: bool = False


def run_case(spec: KernelSpec, case: Case, device: Device, options: RunOptions) -> CaseResult:
    """Run and judge one case; deliberate errors become a result with verdict ERROR.

    Errors: CompileError passes through, because no case of that kernel can run.
    """
    blank = CaseResult(
        kernel=spec.name,
        family=spec.family,
        case=case.name,
        axes=case.axes,
        backend=device.backend,
        mode=getattr(device, "mode", "run"),
        arch=device.arch,
        seed=options.seed,
        verdict=ERROR,
    )
    try:
        return _run(spec, case, device, options, blank)
    except CompileError:
        raise
    except Dsv4Error as error:
        return replace(blank, error=str(error), error_class=type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the device did with a case: the bits of its outputs and every proof beside them.

    firsts and seconds are the outputs of the first two launches, poisoned differently before.
    """

    firsts: Mapping[str, np.ndarray]
    seconds: Mapping[str, np.ndarray]
    identical: bool
    damage: Mapping[str, Damage]
    changed: tuple[str, ...]
    batch: bool | None
    timing: Timing | None
    roof: float | None
    build: dict[str, Any] | None


def _run(
    spec: KernelSpec, case: Case, device: Device, options: RunOptions, blank: CaseResult
) -> CaseResult:
    inputs = inputs_of(spec, case, options.seed)
    named = scalars_of(spec, case)
    bound = {**case.axes, **named}
    shapes = {a.name: array_shape(a, bound) for a in spec.arrays}
    shape = bind_shape(spec, shapes, named)
    expected = reference(spec, inputs, shape)
    with turn(device) if options.turns else contextlib.nullcontext():
        seen = _on_device(spec, case, device, options, inputs, named, shapes)
    outputs = tuple(
        _judge(spec, name, first, seen.seconds[name], expected[name], shape, options)
        for name, first in seen.firsts.items()
    )
    what_if = tuple(
        _judge(spec, n, first, seen.seconds[n], expected[n], shape, options, options.what_if)
        for n, first in seen.firsts.items()
        if options.what_if is not None
    )
    result = replace(
        blank,
        guards=seen.damage,
        inputs_changed=seen.changed,
        relaunch_identical=seen.identical,
        relaunches=options.relaunch,
        batch_identical=seen.batch,
        timing=seen.timing,
        roof=seen.roof,
        size_bytes=spec.work(shape).size_bytes,
        flops=spec.work(shape).flops,
        outputs=outputs,
        what_if=what_if,
        build=seen.build,
        input_digest=digest_of(inputs, {a.name: a.fmt.name for a in spec.inputs}),
        output_digest=digest_of(seen.firsts, {a.name: a.fmt.name for a in spec.outputs}),
    )
    reasons = _reasons(spec, result)
    return replace(result, verdict=FAIL if reasons else PASS, reasons=reasons)


def _on_device(
    spec: KernelSpec,
    case: Case,
    device: Device,
    options: RunOptions,
    inputs: Mapping[str, np.ndarray],
    named: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> _Seen:
    arrays = _allocate(spec, case, device, shapes, options.guard)
    launch = _prepared(spec, device, arrays, named)
    firsts = _launch_once(spec, device, arrays, inputs, launch, options, POISON_BYTES[0])
    seconds = firsts
    if options.relaunch > 1:
        seconds = _launch_once(spec, device, arrays, inputs, launch, options, POISON_BYTES[1])
    identical = all(same_bytes(seconds[n], firsts[n]) for n in firsts)
    identical &= _relaunch_on_device(spec, device, arrays, inputs, launch, options)
    damage = {n: a.damage() for n, a in arrays.items()} if options.guard else {}
    changed = tuple(
        a.name
        for a in spec.arrays
        if a.role == "in" and not same_bytes(arrays[a.name].bits(), inputs[a.name])
    )
    batch = _batch_identical(spec, case, device, inputs, named, firsts, options)
    timing, roof = None, None
    if options.time and getattr(device, "mode", "run") == "run":
        size = spec.work(launch.shape).size_bytes
        timing = _time(spec, case, device, inputs, named, shapes, size, options)
        roof = copy_roof(device)
    build = _build_facts(spec, device, launch)
    return _Seen(firsts, seconds, identical, damage, changed, batch, timing, roof, build)


def _reasons(spec: KernelSpec, result: CaseResult) -> tuple[str, ...]:
    """Why the case fails, one sentence each; empty when it passes."""
    found = []
    for output in result.outputs:
        if output.unwritten:
            found.append(f"{output.name}: {output.unwritten} elements were never written")
        if not output.passed:
            found.append(f"{output.name}: {output.reason}")
    for name, damage in result.guards.items():
        places = {"before": damage.before, "after": damage.after, "between rows of": damage.between}
        found += [f"{n} guard bytes {where} {name} changed" for where, n in places.items() if n]
    found += [f"input {name} was changed by the kernel" for name in result.inputs_changed]
    if spec.repeatable and not result.relaunch_identical:
        found.append(f"{result.relaunches} launches on the same bytes gave different bytes")
    if result.batch_identical is False:
        found.append(f"a row alone gives other bytes than in a batch along {spec.batch_invariant}")
    return tuple(found)


def _allocate(
    spec: KernelSpec,
    case: Case,
    device: Device,
    shapes: Mapping[str, tuple[int, ...]],
    guard: bool,
) -> dict[str, Guarded]:
    unknown = [n for n in case.pad if not spec.arg(n).strided]
    if unknown:
        raise SpecError(f"{spec.name} case {case.name}: {', '.join(unknown)} is not strided")
    return {
        a.name: Guarded(device, a, shapes[a.name], pad=case.pad.get(a.name, 0), guard=guard)
        for a in spec.arrays
    }


def _prepared(
    spec: KernelSpec, device: Device, arrays: Mapping[str, Guarded], named: Mapping[str, Any]
) -> Launch:
    return prepare(spec, device=device, **{n: a.array for n, a in arrays.items()}, **named)


def _launch_once(
    spec: KernelSpec,
    device: Device,
    arrays: Mapping[str, Guarded],
    inputs: Mapping[str, np.ndarray],
    launch: Launch,
    options: RunOptions,
    poison: int,
) -> dict[str, np.ndarray]:
    """Restore every input, poison the outputs, launch, and return the outputs' bits."""
    for arg in spec.arrays:
        if arg.role == "out":
            if options.poison:
                arrays[arg.name].poison(poison)
        else:
            arrays[arg.name].store(inputs[arg.name])
    options.launcher(launch, arrays)
    device.synchronize()
    return {a.name: arrays[a.name].bits() for a in spec.outputs}


def _relaunch_on_device(
    spec: KernelSpec,
    device: Device,
    arrays: Mapping[str, Guarded],
    inputs: Mapping[str, np.ndarray],
    launch: Launch,
    options: RunOptions,
) -> bool:
    """Whether the launches after the second give the bytes that the outputs hold now.

    Nothing is copied to the host in between, so that thousands of launches stay affordable.
    """
    wanted = {a.name: arrays[a.name].copy() for a in spec.outputs}
    restored = {a.name: device.to_device(inputs[a.name]) for a in spec.arrays if a.role == "inout"}
    different: Any = 0
    for index in range(2, options.relaunch):
        for arg in spec.arrays:
            if arg.role == "out" and options.poison:
                arrays[arg.name].poison(POISON_BYTES[index % 2])
            elif arg.role == "inout":
                arrays[arg.name].array[...] = restored[arg.name]
        options.launcher(launch, arrays)
        for name, copy in wanted.items():
            different += (arrays[name].copy() != copy).sum()
    device.synchronize()
    return int(different) == 0


def _judge(
    spec: KernelSpec,
    name: str,
    got: np.ndarray,
    again: np.ndarray,
    expected: Reference,
    shape: Mapping[str, Any],
    options: RunOptions,
    contract: Contract | None = None,
) -> OutputDiff:
    arg = spec.arg(name)
    return compare(
        got,
        expected.value,
        name=name,
        fmt=arg.fmt.name,
        axes=arg.axes,
        contract=contract or spec.contract[name],
        magnitude=expected.magnitude,
        shape=shape,
        tile=spec.writes.get(name),
        top=options.top,
        # An inout array starts with content, so poison says nothing about it.
        again=again if options.poison and options.relaunch > 1 and arg.role == "out" else None,
    )


def _batch_identical(
    spec: KernelSpec,
    case: Case,
    device: Device,
    inputs: Mapping[str, np.ndarray],
    named: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
    options: RunOptions,
) -> bool | None:
    """Whether rows alone give the bytes they give in the batch; None when nothing is declared."""
    axis = spec.batch_invariant
    count = case.axes.get(axis, 1)
    if not axis or count < 2:
        return None
    for index in sorted({0, count // 2, count - 1}):
        alone = {n: _slice_axis(spec, n, bits, axis, index) for n, bits in inputs.items()}
        wanted = {n: _slice_axis(spec, n, bits, axis, index) for n, bits in outputs.items()}
        bound = {**case.axes, axis: 1, **named}
        arrays = {
            a.name: Guarded(device, a, array_shape(a, bound), guard=False) for a in spec.arrays
        }
        launch = _prepared(spec, device, arrays, named)
        got = _launch_once(spec, device, arrays, alone, launch, options, POISON_BYTES[0])
        if not all(same_bytes(got[n], wanted[n]) for n in wanted):
            return False
    return True


def _slice_axis(spec: KernelSpec, name: str, bits: np.ndarray, axis: str, index: int) -> np.ndarray:
    axes = spec.arg(name).axes
    if any(axis in a and not is_name(a) for a in axes):
        raise SpecError(
            f"{spec.name}: {name} [{', '.join(axes)}] cannot be cut along {axis},"
            " so batch_invariant cannot be shown"
        )
    if axis not in axes:
        return bits
    return np.ascontiguousarray(np.take(bits, [index], axis=axes.index(axis)))


def _build_facts(spec: KernelSpec, device: Device, launch: Launch) -> dict[str, Any] | None:
    """What the compiler made of the kernel, for the record; None on host."""
    if device.backend != "cuda":
        return None
    cubin = device.build(spec, launch.constants)  # type: ignore[attr-defined]
    used = device.attributes(spec, launch.constants)  # type: ignore[attr-defined]
    return {
        "options": dict(launch.constants),
        "arch": cubin.arch,
        "nvrtc": nvrtc_version(),
        "cubin_digest": cubin.digest,
        "regs": used.registers,
        "smem": used.shared_bytes,
        "local_bytes": used.spill_bytes,
        "sass_bytes": code_bytes(cubin.path.read_bytes(), spec.symbol),
    }


def _time(
    spec: KernelSpec,
    case: Case,
    device: Device,
    inputs: Mapping[str, np.ndarray],
    named: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    size_bytes: int,
    options: RunOptions,
) -> Timing:
    """Time on copies of the arrays, so that rotation defeats the cache."""
    launches = []
    for _ in range(copies_for(size_bytes, device)):
        arrays = _allocate(spec, case, device, shapes, guard=False)
        for name, content in inputs.items():
            arrays[name].store(content)
        launches.append(_prepared(spec, device, arrays, named).run)
    return time_launches(device, launches, size_bytes, samples=options.samples)


def digest_of(arrays: Mapping[str, np.ndarray], formats: Mapping[str, str]) -> str:
    """SHA-256 over the arrays' bytes in name order, with every NaN counted as the same NaN.

    The payload of a NaN differs between machines; its place does not.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        bits = arrays[name]
        if formats[name] in ("f64", "f32", "f16", "bf16"):
            bits = np.where(np.isnan(decode(bits, formats[name])), _one_nan(bits.dtype), bits)
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(bits).tobytes())
    return digest.hexdigest()


def _one_nan(dtype: np.dtype) -> np.generic:
    """All bits set: a NaN in every float format, seen through its storage type."""
    return np.full(dtype.itemsize, 0xFF, np.uint8).view(dtype)[0]  # type: ignore[no-any-return]

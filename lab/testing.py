"""What the pytest files use: contract tests and speed tests made from a kernel's cases.

A contract test runs one case on the host in `run`, in `shuffle` with three seeds and, for small
cases, in `check`; on a machine with a GPU it runs there too (marker `gpu`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4 import registry
from dsv4.runtime.device import Device, cuda_problem, open_device
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import prepare
from dsv4.spec import Geometry, KernelSpec
from lab.arrays import Guarded
from lab.bench.chosen import benched
from lab.bench.kernels import open_side
from lab.bench.roofs import Roofs, measure_roofs
from lab.cases import Case, array_shape, cases, inputs_of, scalars_of
from lab.measure.timing import DeviceTimer, Timing
from lab.record.store import default_path
from lab.recording import Recorder
from lab.result import PASS, CaseResult
from lab.run import RunOptions, run_case
from oracle.formats import decode

SHUFFLE_SEEDS = (1, 2, 3)
_PLACES = ("host-run", "host-shuffle", "host-check", "cuda")


@functools.lru_cache(maxsize=1)
def cuda() -> Device:
    """The first GPU; skips the test, saying why, where there is none."""
    problem = cuda_problem()
    if problem is not None:
        pytest.skip(f"needs a GPU: {problem}")
    return open_device("cuda")  # type: ignore[no-any-return]


def contract_tests(kernel: str, *, levels: tuple[str, ...] = ("quick",)) -> Callable[..., None]:
    """A parametrised test: every case of these levels holds its contract everywhere."""
    parameters = [
        pytest.param(
            case,
            place,
            id=f"{kernel}[{case.label}]-{place}",
            marks=[pytest.mark.gpu] if place == "cuda" else [],
        )
        for case in cases(kernel)
        if case.level in levels
        for place in _PLACES
        if place != "host-check" or case.check
    ]

    @pytest.mark.parametrize(("case", "place"), parameters)
    def test_contract(case: Case, place: str) -> None:
        for result in _results(kernel, case, place):
            assert result.verdict == PASS, _explain(result)

    return test_contract


def speed_tests(kernel: str) -> Callable[..., None]:
    """A parametrised benchmark over the cases that `dsv4-lab bench` times on what is there.

    On CUDA a round is one replay of a graph of launches over rotating arrays, and the reported
    time is per launch; on host it is the wall clock of one launch.
    """
    chosen = benched(kernel)

    @pytest.mark.speed
    @pytest.mark.parametrize("case", [pytest.param(c, id=f"{kernel}[{c.label}]") for c in chosen])
    def test_speed(case: Case, benchmark: Any) -> None:
        device = open_device("auto")
        if device.backend == "host" and case.level != "quick":
            pytest.skip("full sizes are timed on a GPU only")
        _benchmark(kernel, case, device, benchmark)

    return test_speed  # type: ignore[no-any-return]


def run_kernel(kernel: str, device: Device, **content: Any) -> SimpleNamespace:
    """The outputs of one launch by name: floats decoded to float64, codes and integers as stored.

    Capitals are axes, the rest is scalars, options and contents as in a case.
    """
    spec = registry.spec(kernel)
    case = Case("direct", **content)
    named = scalars_of(spec, case)
    inputs = inputs_of(spec, case, seed=0)
    bound = {**case.axes, **named}
    arrays = {a.name: Guarded(device, a, array_shape(a, bound)) for a in spec.arrays}
    for name, array in arrays.items():
        if name in inputs:
            array.store(inputs[name])
        else:
            array.poison(0xFF)
    prepare(spec, device=device, **{n: a.array for n, a in arrays.items()}, **named).run()
    device.synchronize()
    results = {}
    for arg in spec.outputs:
        bits = arrays[arg.name].bits()
        results[arg.name] = decode(bits, arg.fmt.name) if arg.fmt.is_float else bits
    return SimpleNamespace(**results)


class WithoutClusters(HostDevice):
    """Kernels as they are built for cards whose blocks cannot reach each other."""

    def bind(
        self,
        spec: KernelSpec,
        constants: Mapping[str, int],
        geometry: Geometry,
        values: Sequence[Any],
    ) -> Callable[[], None]:
        """The same call, of a build with CLUSTERED 0."""
        alone = {**constants, "CLUSTERED": 0}
        return super().bind(spec, alone, replace(geometry, cluster=1), values)


def same_without_clusters(kernel: str, *, mode: str = "run", **content: Any) -> bool:
    """Whether a launch writes the same with clusters as without; NaNs are all the same."""
    found = [
        vars(run_kernel(kernel, device(mode=mode), **content))
        for device in (HostDevice, WithoutClusters)
    ]
    return all(np.array_equal(a, found[1][n], equal_nan=True) for n, a in found[0].items())


def _results(kernel: str, case: Case, place: str) -> list[CaseResult]:
    spec = registry.spec(kernel)
    if place == "cuda":
        return [run_case(spec, case, cuda(), RunOptions(time=False))]
    mode = place.removeprefix("host-")
    seeds = SHUFFLE_SEEDS if mode == "shuffle" else (0,)
    relaunch = 1 if mode == "check" else 2
    options = RunOptions(time=False, relaunch=relaunch)
    return [run_case(spec, case, HostDevice(mode=mode, seed=s), options) for s in seeds]


def _explain(result: CaseResult) -> str:
    lines = [f"{result.kernel} {result.label} on {result.backend} {result.mode}: {result.verdict}"]
    lines += [f"  {r}" for r in result.reasons]
    if result.error:
        lines.append(f"  {result.error_class}: {result.error}")
    lines += [f"  {o.name}: bound use {o.bound_use}, first {o.first}" for o in result.outputs]
    lines.append(
        f"  rerun: dsv4-lab kernel-diff {result.kernel} -c '{result.case}'"
        f" --backend {result.backend}"
        + (f" --mode {result.mode}" if result.backend == "host" else "")
    )
    return "\n".join(lines)


def _benchmark(kernel: str, case: Case, device: Device, benchmark: Any) -> None:
    """What `dsv4-lab bench` times, under pytest-benchmark: judged first, then in the same graph."""
    side = open_side(registry.spec(kernel), case, device, {}, seed=0)
    checked = side.result
    assert checked.verdict == PASS, _explain(checked)
    timer = DeviceTimer(device, [copy.launch.run for copy in side.copies])
    cold = timer.cold(checked.size_bytes)
    benchmark._timer = timer
    benchmark.extra_info.update(
        kernel=kernel,
        case=case.label,
        backend=device.backend,
        device=device.name,
        arch=device.arch,
        bytes=checked.size_bytes,
        flops=checked.flops,
        launches_per_round=timer.launches,
        cold=cold,
        output_digest=checked.output_digest,
    )
    benchmark.pedantic(timer.work, setup=timer.start, rounds=15, warmup_rounds=2)
    timing = Timing(tuple(benchmark.stats.stats.data), cold)
    benchmark.extra_info["bytes_per_s"] = checked.size_bytes / timing.median_s
    roofs = _roofs(device)
    _speed_record(device).add(replace(checked, timing=timing, roof=roofs.copy if roofs else None))


_ROOFS: list[Roofs | None] = []


def _roofs(device: Device) -> Roofs | None:
    """The roofs of this session, measured with its first timing; None on host."""
    if not _ROOFS:
        _ROOFS.append(measure_roofs(device))
    return _ROOFS[0]


_RECORDS: list[Recorder] = []


def _speed_record(device: Device) -> Recorder:
    """The one record of this pytest session, begun with the first timing."""
    if not _RECORDS:
        _RECORDS.append(Recorder(default_path(), device))
    return _RECORDS[0]


def finish_benchmarks(exit_code: int) -> None:
    """Mark the session's record as finished."""
    while _RECORDS:
        _RECORDS.pop().finish(exit_code)

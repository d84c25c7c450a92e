"""Our work as the engine runs it, where that is several launches: attention in chunks, joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dsv4.kernels import attention
from dsv4.runtime.device import Device
from dsv4.runtime.launch import Launch, prepare
from dsv4.spec import F32, F64, Format, Kernel, KernelSpec
from lab.bench.kernels import Copy, Side, copies
from lab.bench.sampling import repeated
from lab.cases import Case, scalars_of
from lab.result import FAIL
from lab.run import digest_of

_PARTS: Final[dict[str, tuple[Kernel, Kernel, Format]]] = {
    "attention_sink": (attention.attention_sink_split, attention.attention_sink_join, F64),
    "attention_sink_f32": (
        attention.attention_sink_split_f32,
        attention.attention_sink_join_f32,
        F32,
    ),
}


def as_the_engine_runs_it(
    spec: KernelSpec, case: Case, device: Device, seed: int, whole: Side
) -> tuple[Side, str]:
    """The side to be timed, and in words what it is: the kernel itself where it is one launch.

    Attention is timed as chunks and their join, which must leave the bytes of the judged kernel.
    """
    if spec.name not in _PARTS or whole.again is None:
        return whole, ""
    made = copies(spec, case, device, seed, whole.result.size_bytes)
    joined = [_in_chunks(spec, case, device, copy) for copy in made]
    runs = [run for run, _ in joined]
    size = sum(launch.spec.work(launch.shape).size_bytes for launch in joined[0][1])
    runs[0]()
    device.synchronize()
    formats = {a.name: a.fmt.name for a in spec.outputs}
    got = digest_of({"o": made[0].arrays["o"].bits()}, formats)
    words = " and ".join(launch.spec.name for launch in joined[0][1])
    result = replace(whole.result, size_bytes=size)
    if got != whole.result.output_digest:
        why = f"{words} leave other bytes than {spec.name}"
        return Side(replace(result, verdict=FAIL, reasons=(why,))), words
    return Side(result, made, repeated(device, runs, size)), words


def _in_chunks(
    spec: KernelSpec, case: Case, device: Device, copy: Copy
) -> tuple[Callable[[], None], tuple[Launch, Launch]]:
    split, join, sums = _PARTS[spec.name]
    axes: Any = copy.launch.shape
    chunks = -(-int(axes.S) // attention.CHUNK)
    shape = (int(axes.T), chunks, int(axes.H))
    power, total = (device.empty(shape, sums) for _ in range(2))
    value = device.empty((*shape, int(axes.K)), sums)
    arrays = {name: guarded.array for name, guarded in copy.arrays.items()}
    scale = scalars_of(spec, case)["scale"]
    first = prepare(
        split.spec, arrays["q"], arrays["kv"], arrays["ids"], power=power, total=total,
        value=value, scale=scale, device=device,
    )  # fmt: skip
    second = prepare(join.spec, power, total, value, arrays["sink"], out=arrays["o"], device=device)

    def run() -> None:
        first.run()
        second.run()

    return run, (first, second)

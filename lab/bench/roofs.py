"""What memory gives in this run: the roofs of reading and copying, and the shortest launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dsv4 import registry
from dsv4.errors import ContractError
from dsv4.runtime.device import Device
from dsv4.runtime.launch import prepare
from dsv4.spec import I32
from lab.bench.sampling import repeated, turn_by_turn
from lab.cases import Case, cases
from lab.measure.timing import copy_roof
from lab.result import PASS
from lab.run import RunOptions, run_case

_READ_BYTES: Final = 1 << 30
# Blocks for each SM that are tried, and build options.
_BLOCKS: Final = (1, 2, 3, 4, 6, 8)
_SAMPLES: Final = 7


@dataclass(frozen=True, slots=True)
class Roofs:
    """Bytes a second of a read-only stream and of a copy, read plus written.

    launch_s: what a dependent launch that does nothing costs in a graph. grid: the stream's best.
    """

    read: float
    copy: float
    launch_s: float
    grid: str

    def to_json(self) -> dict[str, Any]:
        """The `roofs` of a document."""
        return {
            "read_bytes_per_s": self.read,
            "copy_bytes_per_s": self.copy,
            "launch_s": self.launch_s,
            "read_grid": self.grid,
        }


def measure_roofs(device: Device) -> Roofs | None:
    """The roofs of a GPU, now; None on host, whose times are told against none.

    Errors: ContractError when the stream does not read every word.
    """
    if device.backend == "host":
        return None
    spec = registry.spec("roof_read")
    for case in cases("roof_read"):
        if case.level == "quick":
            _check(case, device)
    words = device.empty((_READ_BYTES // 4,), I32)
    words[...] = 1
    count = _multiprocessors(device)
    best: tuple[float, str] = (0.0, "")
    for threads in spec.options[0].choices:
        for loads in spec.options[1].choices:
            for blocks in (count * n for n in _BLOCKS):
                y = device.empty((blocks,), I32)
                launch = prepare(spec, words, out=y, device=device, threads=threads, loads=loads)
                side = repeated(device, [launch.run], _READ_BYTES, at_least=8)
                timing = turn_by_turn([side], _SAMPLES)[0]
                grid = f"{blocks} blocks of {threads}, {loads} loads of 16 bytes a thread"
                best = max(best, (_READ_BYTES / timing.median_s, grid))
    return Roofs(best[0], copy_roof(device), _shortest_launch_s(device, words), best[1])


def _check(case: Case, device: Device) -> None:
    spec = registry.spec("roof_read")
    result = run_case(spec, case, device, RunOptions(time=False))
    if result.verdict != PASS:
        raise ContractError(
            f"the roof of reading was to be measured\n  roof_read breaks its contract on"
            f" {case.label}: {'; '.join(result.reasons) or result.error}\n  in lab.bench.roofs\n"
            "  see: dsv4-lab kernel-diff roof_read"
        )


def _shortest_launch_s(device: Device, words: Any) -> float:
    """A launch of one block that reads one vector, behind another of its kind."""
    launch = prepare(
        registry.spec("roof_read"), words[:4], out=device.empty((1,), I32), device=device,
        threads=256, loads=4,
    )  # fmt: skip
    side = repeated(device, [launch.run], 0, at_least=512)
    return turn_by_turn([side], _SAMPLES)[0].median_s


def _multiprocessors(device: Device) -> int:
    properties = device.xp.cuda.runtime.getDeviceProperties(int(getattr(device, "index", 0)))
    return int(properties["multiProcessorCount"])

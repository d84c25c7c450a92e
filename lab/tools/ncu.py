"""Nsight Compute on one launch of one case, its headline metrics as data.

The tool watches a kernel-diff of the case in a child process and profiles the first launch of the
kernel's symbol. Clocks are left alone.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv4.errors import DeviceError, LaunchError
from lab.cases import Case

_PLACES = (Path("/usr/local/cuda/bin"), Path("/opt/nvidia/nsight-compute"), Path("/opt/cuda/bin"))
HEADLINES: Final = {
    "gpu__time_duration.sum": "time",
    "gpc__cycles_elapsed.avg.per_second": "clock",
    "dram__bytes.sum": "DRAM bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM of peak",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "l1tex__t_sector_hit_rate.pct": "L1 hits",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM of peak",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots used",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps active",
    "launch__registers_per_thread": "registers",
    "launch__occupancy_limit_registers": "blocks by registers",
    "launch__occupancy_limit_shared_mem": "blocks by shared memory",
}
"""Metric of Nsight Compute -> what people call it."""

STALLS: Final = {
    f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio": f"warps that wait {words}"
    for reason, words in {
        "long_scoreboard": "for memory",
        "short_scoreboard": "for shared memory",
        "barrier": "at a barrier",
        "membar": "for a fence",
        "lg_throttle": "to send loads",
        "mio_throttle": "for the shared-memory queue",
        "math_pipe_throttle": "for a busy unit",
        "no_instruction": "for instructions",
        "wait": "for a result of known latency",
        "not_selected": "for their turn",
    }.items()
}
"""Why warps of a scheduler do not issue: so many on average, for each instruction issued."""

# Everything as SI: a unit of the tool and the factor to the base unit.
_UNITS: Final = {
    "nsecond": ("s", 1e-9), "usecond": ("s", 1e-6), "msecond": ("s", 1e-3), "second": ("s", 1.0),
    "ns": ("s", 1e-9), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0),
    "byte": ("B", 1.0), "kbyte": ("B", 1e3), "mbyte": ("B", 1e6), "gbyte": ("B", 1e9),
    "hz": ("Hz", 1.0), "khz": ("Hz", 1e3), "mhz": ("Hz", 1e6), "ghz": ("Hz", 1e9),
    "cycle/second": ("Hz", 1.0), "cycle/nsecond": ("Hz", 1e9), "cycle/usecond": ("Hz", 1e6),
    "%": ("%", 1.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a profile, in SI units or percent."""

    name: str
    label: str
    value: float
    unit: str


def find_ncu() -> Path:
    """Where Nsight Compute is. Errors: DeviceError naming the places looked at."""
    if found := shutil.which("ncu"):
        return Path(found)
    for folder in _PLACES:
        if (folder / "ncu").is_file():
            return folder / "ncu"
    raise DeviceError(
        "ncu (Nsight Compute) was not found on PATH or in "
        + ", ".join(map(str, _PLACES))
        + "\n  it comes with the CUDA toolkit; on a CPU, kernel-diff and bench time kernels"
    )


def selecting(kernel: str, case: Case, seed: int) -> list[str]:
    """Arguments of kernel-diff that select one case: by its axes too, for names come again."""
    axes = ",".join(f"{axis}={size}" for axis, size in case.axes.items())
    return [kernel, "-c", case.name, "-p", axes, "--level", case.level, "--seed", str(seed)]


def profile(
    symbol: str,
    arguments: Sequence[str],
    *,
    sections: Sequence[str] = (),
    set_name: str = "",
    keep: Path | None = None,
) -> tuple[list[Metric], str]:
    """(headline metrics and stalls of the first launch of a symbol, the tool's CSV).

    arguments: of kernel-diff, selecting one case. sections and set_name go to the tool. keep: a
    file for its own report. Errors: DeviceError without the tool or without the permission to read
    counters, LaunchError when nothing was profiled.
    """
    command = [str(find_ncu()), "--csv", "--page", "raw", "--clock-control", "none"]
    command += ["--kernel-name", f"regex:^{symbol}$", "--launch-count", "1"]
    command += [part for s in sections for part in ("--section", s)]
    command += ["--set", set_name] if set_name else []
    command += ["--metrics", ",".join([*HEADLINES, *STALLS])]
    command += ["--export", str(keep), "--force-overwrite"] if keep is not None else []
    child = [sys.executable, "-m", "lab.cli", "--quiet", "kernel-diff", *arguments]
    child += ["--backend", "cuda", "--no-time", "--no-record", "--relaunch", "1"]
    done = subprocess.run(
        [*command, *child], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise DeviceError(
            "ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM)\n"
            "  an administrator allows it with NVreg_RestrictProfilingToAdminUsers=0"
        )
    text = done.stdout
    if keep is not None:  # with --export the tool prints no page of its own
        again = [str(find_ncu()), "--csv", "--page", "raw", "--import", f"{keep}"]
        text = subprocess.run(again, capture_output=True, text=True, check=False).stdout
    metrics = parse(text)
    if not metrics:
        raise LaunchError(
            f"{symbol}: ncu profiled nothing (exit {done.returncode})\n"
            f"  {(done.stderr + done.stdout).strip()[-500:]}\n  run the case without it first"
        )
    return metrics, text


def parse(text: str) -> list[Metric]:
    """The headline metrics and stalls of the first kernel in the tool's raw CSV page.

    The page is a header line, a line of units and a line for each kernel, behind other output.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None or len(lines) < start + 3:
        return []
    header, units, values = list(csv.reader(lines[start : start + 3]))
    found, labels = [], {**HEADLINES, **STALLS}
    for name, unit, value in zip(header, units, values, strict=False):
        if name not in labels or not value:
            continue
        base, factor = _UNITS.get(unit.lower(), (unit, 1.0))
        try:
            number = float(value.replace(",", "")) * factor
        except ValueError:
            continue
        found.append(Metric(name, labels[name], number, base))
    return sorted(found, key=lambda m: list(labels).index(m.name))

"""compute-sanitizer on kernel cases, its findings as rows.

The tool watches a kernel-diff of the same cases in a child process with CuPy's memory pool off, so
that every array is an allocation of its own and an overrun of one byte leaves it. The cubins carry
line information with the real path, so a finding names the `.cu` line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4.errors import DeviceError, KernelFault, LaunchError
from lab.result import PASS, CaseResult, case_key, places_of

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CHECK = "host check"
_PLACES = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))


@dataclass(frozen=True, slots=True)
class Finding:
    """One report: which tool, what, in which kernel, at which source line; the case if known."""

    tool: str
    what: str
    kernel: str
    file: str
    line: int
    case: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """A case that did not pass while the tool watched, whether or not the tool found why.

    error_class: "" for a broken contract, else the class of the error that ended the case.
    """

    tool: str
    kernel: str
    case: str
    verdict: str
    what: str
    error_class: str


@dataclass(frozen=True, slots=True)
class Report:
    """What one tool said about one run.

    broken: cases that failed or ended in an error meanwhile. cases: how many the child ran to
    their end. complete: whether the child ended by itself, with all of them judged, and the tool
    closed with its summary.
    """

    tool: str
    findings: tuple[Finding, ...]
    broken: tuple[Broken, ...]
    cases: int
    complete: bool
    log: str


def find_sanitizer() -> Path:
    """Where compute-sanitizer is. Errors: DeviceError naming the places looked at."""
    found = shutil.which("compute-sanitizer")
    if found:
        return Path(found)
    for folder in _PLACES:
        if (folder / "compute-sanitizer").is_file():
            return folder / "compute-sanitizer"
    raise DeviceError(
        "compute-sanitizer was not found on PATH or in "
        + ", ".join(map(str, _PLACES))
        + "\n  it comes with the CUDA toolkit; without it, the host backend finds the same faults:"
        " dsv4-lab kernel-diff --backend host --mode check"
    )


def sanitize(
    tool: str, kernels: Sequence[str], *, arguments: Sequence[str] = (), padding: int = 0
) -> Report:
    """Run one tool over the kernels' cases.

    padding: extra bytes that memcheck keeps after each allocation, so that longer overruns do not
    land in a neighbour. Errors: DeviceError without the tool, LaunchError when the child gave no
    result at all.
    """
    command = [str(find_sanitizer()), f"--tool={tool}", "--print-limit=1000"]
    if padding and tool == "memcheck":
        command.append(f"--padding={padding}")
    with tempfile.TemporaryDirectory(prefix="dsv4-lab-") as folder:
        log = Path(folder) / "sanitizer.log"
        child = [sys.executable, "-m", "lab.cli", "--json", "kernel-diff", *kernels, *arguments]
        child += ["--backend", "cuda", "--no-time", "--no-record", "--relaunch", "1", "--no-guard"]
        child += ["--save-failing", folder]
        done = subprocess.run(
            [*command, f"--log-file={log}", *child],
            capture_output=True,
            text=True,
            env={**os.environ, "DSV4_POOL": "off"},
        )
        text = log.read_text(errors="replace") if log.exists() else ""
    # A child that crashed half-way must not look clean: only a whole run prints its document.
    results = _results(done.stdout)
    ran = len(re.findall(r"\b(?:PASS|FAIL|ERROR)$", done.stderr, re.MULTILINE))
    if results is None and not ran:
        raise LaunchError(
            f"{tool}: the run under compute-sanitizer gave no result (exit {done.returncode})\n"
            f"  {(text + done.stderr).strip()[-500:]}\n  run the same kernels without it first"
        )
    return Report(
        tool,
        parse(tool, text),
        tuple(_broken(tool, row) for row in results or () if row["verdict"] != PASS),
        ran if results is None else len(results),
        results is not None and "SUMMARY" in text,
        text + done.stderr,
    )


def _results(document: str) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = json.loads(document)["results"]
    except (ValueError, KeyError):
        return None
    return found


def _broken(tool: str, row: Mapping[str, Any]) -> Broken:
    parts = [row["error"]] if row["error"] else [*row["reasons"], *places_of(row["outputs"])]
    what = "; ".join(parts).splitlines()[0]
    label = case_key(row["case"], row["axes"])
    return Broken(
        tool,
        row["kernel"],
        label,
        row["verdict"],
        what.removeprefix(f"{row['kernel']}: "),
        row["error_class"] or "",
    )


def parse(tool: str, log: str) -> tuple[Finding, ...]:
    """The findings in a log, one for each report with a source line or a message."""
    found = []
    blocks = re.split(r"^=========\s*$", log, flags=re.MULTILINE)
    for block in blocks:
        lines = [re.sub(r"^=+ ?", "", line) for line in block.splitlines() if line.strip()]
        lines = [line for line in lines if not line.startswith(("COMPUTE-SANITIZER", "Target"))]
        head = next((line.strip() for line in lines if _is_head(line)), None)
        if head is None:
            continue
        text = "\n".join(lines)
        # "at kernel_name(...)+0x10 in /path/file.cu:33", the name possibly without parameters.
        at = re.search(r"at (?:void )?(\w+)(?:\([^)]*\))?\+?\w* in ([^\s:]+):(\d+)", text)
        kernel = at[1] if at else _kernel_of(text)
        file, line = (Path(at[2]).name, int(at[3])) if at else ("", 0)
        found.append(Finding(tool, head, kernel, file, line))
    return tuple(found)


def of_check_mode(results: Sequence[CaseResult]) -> Report:
    """What the host's check mode found over these results, as a tool reports it."""
    findings, broken = [], []
    for result in results:
        if result.error_class == KernelFault.__name__:
            findings.append(_finding_of(result))
        elif result.verdict != PASS:
            broken.append(_broken(CHECK, result.to_json()))
    return Report(CHECK, tuple(findings), tuple(broken), len(results), True, "")


def _finding_of(result: CaseResult) -> Finding:
    place = re.search(r"at ([^\s:]+):(\d+)", result.error)
    file, line = (Path(place[1]).name, int(place[2])) if place else ("", 0)
    what = result.error.splitlines()[0].removeprefix(f"{result.kernel}: ")
    return Finding(CHECK, what, result.kernel, file, line, result.label)


def _is_head(line: str) -> bool:
    words = ("Invalid", "Error:", "Warning:", "Uninitialized", "Barrier error", "Race reported",
             "Potential", "Unused memory", "Program hit", "Misaligned", "Divergent")  # fmt: skip
    return line.strip().startswith(words)


def _kernel_of(text: str) -> str:
    match = re.search(r"(?:at|in) (?:void )?([a-z]\w+)\(", text)
    return match[1] if match else ""

"""Planted faults against tools: who finds what, at which place, and why someone cannot.

Each fault is in one kernel. A tool's row says its exit code and the words that name the place; a
tool that cannot see a fault must be silent on it, and the row says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.planted import lab, planted


@dataclass(frozen=True)
class Fault:
    """One edit of a source, and the case that shows it."""

    file: str
    old: str
    new: str
    case: tuple[str, ...]


@dataclass(frozen=True)
class Finds:
    """A tool must leave with this code and say all of these; LINE is the line of the mark.

    The mark is in the file of the fault unless another is named.
    """

    code: int
    words: tuple[str, ...]
    mark: str = ""
    marked: str = ""


@dataclass(frozen=True)
class Blind:
    """A tool must be silent, because it looks at something else."""

    because: str


FAULTS = {
    "wrong tile": Fault(
        "rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
        "y[i] = w[i] * (x[i] * factor) * (i < 512 ? 1.0f : 1.001f);",
        ("rms_norm", "-c", "verify"),
    ),
    "wrong scale": Fault(
        "act_quant.cu", "const int k = scale_exponent(amax, mantissa) - exponent;",
        "const int k = scale_exponent(amax, mantissa) - exponent + (blockIdx.x == 5);",
        ("act_quant_fp8", "-c", "verify"),
    ),
    "missing barrier": Fault(
        "router.cu", "    __syncthreads();\n    if (threadIdx.x >= 32) return;",
        "    if (threadIdx.x >= 32) return;",
        ("router", "-c", "tail"),
    ),
    "slowed loop": Fault(
        "rms_norm.cu", "    Sum sum = 0;\n",
        "    Sum sum = 0;\n    for (volatile int wait = 0; wait < 30000; ++wait) {\n    }\n",
        ("rms_norm_f32", "-c", "verify"),
    ),
}  # fmt: skip

TILE = ("rms_norm", "T=0 D=512", "all 4096 mismatches have D >= 512")
SCALE = ("act_quant_fp8", "T=5 K=0", "all 2048 mismatches have T=5")
BARRIER = ("router", "tail", "ids", "T=0 A=0")
RIGHT_BYTES = "the numbers are right, only late"
MATRIX: dict[tuple[str, str], Finds | Blind] = {
    ("kernel-diff", "wrong tile"): Finds(1, TILE),
    ("kernel-diff", "wrong scale"): Finds(1, (*SCALE, "0.5 times the reference")),
    ("kernel-diff", "missing barrier"): Finds(1, BARRIER),
    ("kernel-diff", "slowed loop"): Blind("one run has no other time to compare its own with"),
    # A stage that is right up to the store: the fault is in the store.
    ("probe", "wrong tile"): Finds(1, ("first difference: stage y at output", "T=0 D=512")),
    ("probe", "wrong scale"): Finds(
        1, ("first difference: stage exponent at act_quant.cu:LINE", "T=5 ceil(K/group)=0"),
        'PROBE("exponent"',
    ),
    ("probe", "missing barrier"): Finds(
        1, ("first difference: stage chosen_score at routing.cuh:LINE", "T=0 A=0"),
        'PROBE("chosen_score"', "common/routing.cuh",
    ),
    ("probe", "slowed loop"): Blind(RIGHT_BYTES),
    ("sanitize", "wrong tile"): Finds(1, ("NOT PASSED", *TILE)),
    ("sanitize", "wrong scale"): Finds(1, ("NOT PASSED", *SCALE)),
    ("sanitize", "missing barrier"): Finds(
        7, ("race", "router  router.cu:LINE", "no __syncthreads between them"),
        "key[i] = 32 * i + lane < E ? keys",
    ),
    ("sanitize", "slowed loop"): Blind(RIGHT_BYTES),
    ("compare", "wrong tile"): Finds(1, ("rms_norm verify", "PASS -> FAIL", "D=512 T=0")),
    ("compare", "wrong scale"): Finds(1, ("act_quant_fp8 verify", "PASS -> FAIL", "K=0 T=5")),
    ("compare", "missing barrier"): Finds(1, ("router tail", "PASS -> FAIL", "A=0 T=0")),
    # Which kernel on which case is as near as a time can point.
    ("compare", "slowed loop"): Finds(6, ("rms_norm_f32", "verify", "SLOWER", "bits: 1 SAME")),
    ("golden check", "wrong tile"): Finds(5, TILE),
    ("golden check", "wrong scale"): Finds(5, SCALE),
    ("golden check", "missing barrier"): Finds(5, BARRIER),
    ("golden check", "slowed loop"): Blind("goldens hold bytes and errors, no times"),
}  # fmt: skip


def run_kernel_diff(folder: Path, fault: Fault, wrong: str) -> tuple[int, str]:
    """Exit code and text of kernel-diff on the wrong source."""
    return run(folder, "kernel-diff", *fault.case, "--no-time", wrong=wrong)


def run_probe(folder: Path, fault: Fault, wrong: str) -> tuple[int, str]:
    """Of probe."""
    return run(folder, "probe", *fault.case, wrong=wrong)


def run_sanitize(folder: Path, fault: Fault, wrong: str) -> tuple[int, str]:
    """Of sanitize, which takes no case: it runs all of the kernel's."""
    return run(folder, "sanitize", fault.case[0], wrong=wrong)


def run_compare(folder: Path, fault: Fault, wrong: str) -> tuple[int, str]:
    """Of compare, between a record of the right source and one of the wrong source."""
    assert run(folder, "kernel-diff", *fault.case)[0] == 0
    run(folder, "kernel-diff", *fault.case, wrong=wrong)
    fail_on = ("contract", "bits") if "volatile" not in fault.new else ("contract", "bits", "slow")
    done = lab(folder, "compare", "1", "2", "--explain", "--fail-on", ",".join(fail_on))
    return done.returncode, done.stdout + done.stderr


def run_golden_check(folder: Path, fault: Fault, wrong: str) -> tuple[int, str]:
    """Of golden check, once the right source's bytes are accepted."""
    check = ("golden", "check", *fault.case, "--folder", "goldens")
    run(folder, *check)
    assert lab(folder, "golden", "accept", "--all", "--folder", "goldens").returncode == 0
    assert run(folder, *check)[0] == 0
    return run(folder, *check, wrong=wrong)


TOOLS: dict[str, Callable[[Path, Fault, str], tuple[int, str]]] = {
    "kernel-diff": run_kernel_diff,
    "probe": run_probe,
    "sanitize": run_sanitize,
    "compare": run_compare,
    "golden check": run_golden_check,
}


def run(folder: Path, *arguments: str, wrong: str = "") -> tuple[int, str]:
    """Exit code and text of a command on the host, on the wrong source if one is given."""
    more = {"DSV4_CUDA_ROOT": wrong} if wrong else {}
    done = lab(folder, *arguments, "--backend", "host", **more)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("tool", "name"), MATRIX, ids=[f"{t} on {n}" for t, n in MATRIX])
def test_each_tool_names_the_place_of_a_fault_or_cannot_see_it(
    tmp_path: Path, tool: str, name: str
) -> None:
    fault, expected = FAULTS[name], MATRIX[tool, name]
    wrong = planted(tmp_path, fault.file, fault.old, fault.new)
    code, told = TOOLS[tool](tmp_path, fault, wrong)
    if isinstance(expected, Blind):
        assert code == 0, f"{expected.because}; yet:\n{told}"
        return
    assert code == expected.code, told
    lines = (Path(wrong) / (expected.marked or fault.file)).read_text().splitlines()
    line = next((n for n, text in enumerate(lines, 1) if expected.mark in text), 0)
    wanted = [word.replace("LINE", str(line)) for word in expected.words]
    assert [word for word in wanted if word not in told] == [], told


def test_the_matrix_has_every_pair_and_every_fault_is_found_by_someone() -> None:
    assert set(MATRIX) == {(tool, fault) for tool in TOOLS for fault in FAULTS}
    found = {name for (_, name), row in MATRIX.items() if isinstance(row, Finds)}
    assert found == set(FAULTS)


def test_a_missing_barrier_fails_in_random_order_too(tmp_path: Path) -> None:
    fault = FAULTS["missing barrier"]
    wrong = planted(tmp_path, fault.file, fault.old, fault.new)
    code, _ = run(tmp_path, "kernel-diff", "router", "-p", "E>=32", "--mode", "shuffle",
                  "--no-record", wrong=wrong)  # fmt: skip
    assert code == 1


def test_right_kernels_are_clean_under_the_same_commands(tmp_path: Path) -> None:
    assert run(tmp_path, "sanitize", "router", "cast")[0] == 0
    assert run(tmp_path, "probe", "router", "-p", "E>=32")[0] == 0

"""Four faults planted in kernels, each found by the commands that should, with the place named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.planted import lab, planted

TILE = ("rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
        "y[i] = w[i] * (x[i] * factor) * (i < 512 ? 1.0f : 1.001f);")  # fmt: skip
SCALE = (
    "act_quant.cu",
    "const int k = scale_exponent(amax, mantissa) - exponent;",
    "const int k = scale_exponent(amax, mantissa) - exponent + (blockIdx.x == 5);",
)
BARRIER = ("router.cu", "    __syncthreads();\n    if (threadIdx.x >= 32) return;",
           "    if (threadIdx.x >= 32) return;")  # fmt: skip
HOST = ("--backend", "host")
NORM = ("rms_norm", "-c", "verify", *HOST)
QUANT = ("act_quant_fp8", "-c", "verify", *HOST)


def document(folder: Path, *arguments: str, **more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command."""
    done = lab(folder, "--json", *arguments, **more)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("fault", "case", "pattern", "place"),
    [
        (TILE, NORM, "D >= 512", {"T": 0, "D": 512}),
        (SCALE, QUANT, "T=5", {"T": 5}),
    ],
    ids=["wrong tile", "wrong scale"],
)
def test_a_wrong_place_is_named_by_kernel_diff_compare_and_golden(
    tmp_path: Path,
    fault: tuple[str, str, str],
    case: tuple[str, ...],
    pattern: str,
    place: dict[str, int],
) -> None:
    golden = ("golden", "check", *case, "--folder", "goldens")
    lab(tmp_path, *golden)
    assert lab(tmp_path, "golden", "accept", "--all", "--folder", "goldens").returncode == 0
    assert lab(tmp_path, "kernel-diff", *case, "--no-time").returncode == 0
    wrong = planted(tmp_path, *fault)

    code, found = document(tmp_path, "kernel-diff", *case, "--no-time", DSV4_CUDA_ROOT=wrong)
    assert code == 1
    kernel, results = case[0], found["results"]
    output = next(o for r in results if r["kernel"] == kernel for o in r["outputs"]
                  if not o["pass"])  # fmt: skip
    assert place.items() <= output["first"]["where"].items()
    assert any(pattern in sentence for sentence in output["patterns"]), output["patterns"]

    code, found = document(tmp_path, "compare", "1", "2", "--fail-on", "bits")
    assert code == 5
    moved = [c for c in found["changes"] if c["bits"] == "FAIL"]
    assert {c["kernel"] for c in moved} >= {kernel}
    assert any(w.startswith(f"{output['name']}: ") for c in moved for w in c["why"])

    code, found = document(tmp_path, *golden, DSV4_CUDA_ROOT=wrong)
    assert code == 5
    assert any(f["verdict"] == "FAIL" and f["kernel"] == kernel for f in found["findings"])


def test_a_missing_barrier_is_a_race_at_its_line_and_fails_in_random_order(
    tmp_path: Path,
) -> None:
    wrong = planted(tmp_path, *BARRIER)
    code, found = document(tmp_path, "sanitize", "router", *HOST, DSV4_CUDA_ROOT=wrong)
    assert code == 7
    races = [f for f in found["findings"] if f["what"].startswith("race")]
    assert {f["kernel"] for f in races} == {"router"}
    lines = (tmp_path / "cuda" / "router.cu").read_text().splitlines()
    where = {lines[f["line"] - 1].strip() for f in races}
    assert {f["file"] for f in races} == {"router.cu"}
    assert where & {"scores[e] = score;", "keys[e] = score + bias[e];"} or any(
        "keys[" in line or "scores[" in line for line in where
    ), where
    shuffled = lab(tmp_path, "kernel-diff", "router", "-p", "E>=32", "--mode", "shuffle", *HOST,
                   "--no-record", DSV4_CUDA_ROOT=wrong)  # fmt: skip
    assert shuffled.returncode == 1


def test_right_kernels_are_clean_under_the_same_commands(tmp_path: Path) -> None:
    code, found = document(tmp_path, "sanitize", "router", "cast", *HOST)
    assert (code, found["findings"]) == (0, [])
    assert lab(tmp_path, "probe", "router", "-p", "E>=32", *HOST).returncode == 0

"""The main job from the outside: text, JSON, exit codes, records, saved cases, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4.runtime.device import cuda_problem
from dsv4.runtime.sources import cuda_root

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "tiny-s"
RESULT_KEYS = {
    "kernel", "family", "case", "axes", "backend", "mode", "arch", "seed", "verdict", "guards_ok",
    "inputs_ok", "relaunch_identical", "time_s", "bytes", "bandwidth_fraction", "outputs",
}  # fmt: skip
OUTPUT_KEYS = {
    "name", "format", "contract", "pass", "n", "identical", "ulp_max", "ulp_real_max",
    "ulp_histogram", "bias", "rel_l2", "bound_use", "nan_got", "nan_ref", "unwritten", "first",
}  # fmt: skip


def lab(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lab.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def diff(folder: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """The exit code and document of `--json kernel-diff` on the host."""
    done = lab(folder, "--json", "kernel-diff", "--backend", "host", *arguments, **environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def broken_sources(folder: Path, old: str, new: str) -> str:
    """A copy of the kernel sources with one edit in cast.cu; its folder as text."""
    copy = folder / "cuda"
    shutil.copytree(cuda_root(), copy)
    source = copy / "cast.cu"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    return str(copy)


def test_the_document_has_the_promised_keys_and_nothing_else_is_printed(tmp_path: Path) -> None:
    code, document = diff(tmp_path, "cast", "-c", "tail,special")
    assert code == 0
    assert (document["schema"], document["command"]) == (1, "kernel-diff")
    assert document["summary"] == {"kernels": 1, "cases": 2, "pass": 2, "fail": 0, "error": 0}
    assert {"backend", "python", "numpy"} <= set(document["env"])
    for result in document["results"]:
        assert set(result) >= RESULT_KEYS
        assert result["verdict"] == "PASS"
        for output in result["outputs"]:
            assert set(output) >= OUTPUT_KEYS
            assert output["identical"] == output["n"]


def test_the_text_names_the_machine_every_metric_and_the_record(tmp_path: Path) -> None:
    done = lab(tmp_path, "kernel-diff", "cast", "-c", "tail", "--backend", "host")
    assert done.returncode == 0, done.stderr
    for word in (
        "env ",
        "identical  257 / 257",
        "guards ok",
        "relaunch 3/3",
        "PASS",
        "record 0001",
    ):
        assert word in done.stdout
    assert (tmp_path / ".lab" / "lab.db").exists()


def test_a_wrong_kernel_fails_is_located_saved_and_replayed(tmp_path: Path) -> None:
    # The last partial block is rounded towards zero: only elements past the last full block differ.
    root = broken_sources(
        tmp_path,
        "y[i] = f32_to_bf16(x[i]);",
        "y[i] = i >= (N & ~255LL) ? (bf16)(__float_as_uint(x[i]) >> 16) : f32_to_bf16(x[i]);",
    )
    code, document = diff(tmp_path, "cast", "-c", "binades", DSV4_CUDA_ROOT=root)
    assert code == 1
    assert document["summary"]["fail"] == 1
    output = document["results"][0]["outputs"][0]
    assert output["first"]["index"] >= 4864
    assert output["first"]["block"] == [19, 0, 0]
    files = list((tmp_path / ".lab" / "failing").glob("cast_bf16-*.case"))
    assert len(files) == 1
    again = lab(tmp_path, "replay", str(files[0]), DSV4_CUDA_ROOT=root)
    assert again.returncode == 1
    assert "saved as FAIL, now FAIL" in again.stdout
    assert "tests/test_cast.py" in again.stdout
    healed = lab(tmp_path, "replay", str(files[0]))
    assert healed.returncode == 0
    assert "saved as FAIL, now PASS" in healed.stdout


def test_a_source_that_does_not_compile_names_its_line_and_exits_3(tmp_path: Path) -> None:
    root = broken_sources(tmp_path, "y[i] = f32_to_bf16(x[i]);", "y[i] = nonsense(x[i]);")
    done = lab(tmp_path, "kernel-diff", "cast", "--backend", "host", DSV4_CUDA_ROOT=root)
    assert done.returncode == 3
    assert "cast.cu:" in done.stdout
    assert "nonsense" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_out_of_bounds_write_is_a_finding_with_its_line_and_exits_7(tmp_path: Path) -> None:
    root = broken_sources(tmp_path, "if (i < N) y[i]", "if (i <= N) y[i]")
    code, document = diff(tmp_path, "cast", "-c", "tail", "--mode", "check", DSV4_CUDA_ROOT=root)
    assert code == 7
    result = document["results"][0]
    assert result["error_class"] == "KernelFault"
    assert "cast.cu" in result["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["kernel-diff", "cst_bf16"], 2, ["no kernel matches 'cst_bf16'", "cast_bf16"]),
        (["kernel-diff", "cast", "-c", "tial", "--backend", "host"], 2, ["did you mean tail"]),
        (["kernel-diff", "cast", "-p", "N=3", "--backend", "host"], 8, ["no case"]),
        (["kernel-diff", "cast", "--backend", "gpu"], 2, ["gpu", "host"]),
        (["kernel-diff", "cast", "--mode", "quick", "--backend", "host"], 2, ["quick"]),
        (["kernel-diff", "cast", "--weights", "nowhere", "--backend", "host"], 2, ["nowhere"]),
        (["kernel-diff", "cast", "--against", "yesterday", "--backend", "host"], 2, ["yesterday"]),
        (["kernel-diff", "cast", "--against", "record:1", "--backend", "host"], 2, ["record:1"]),
        (["kernel-diff", "cast", "--what-if", "close", "--backend", "host"], 2, ["close"]),
        (["replay", "nofile.case"], 2, ["nofile.case"]),
        (["--arch", "sm_1", "compile", "cast"], 2, ["sm_1"]),
    ],
)
def test_bad_input_is_one_paragraph_with_the_right_code(
    tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    done = lab(tmp_path, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6


def test_cuda_without_a_gpu_says_what_to_do_and_exits_8(tmp_path: Path) -> None:
    if cuda_problem() is None:
        pytest.skip("this machine has a GPU, so the refusal cannot be shown")
    done = lab(tmp_path, "kernel-diff", "cast", "--backend", "cuda")
    assert done.returncode == 8
    assert "--backend host" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_any_compiler_one_message_names_the_ways_and_exits_3(tmp_path: Path) -> None:
    done = lab(
        tmp_path, "kernel-diff", "cast", "-c", "one", "--backend", "host",
        PATH=str(tmp_path), DSV4_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == 3
    text = done.stdout + done.stderr
    for word in ("DSV4_CXX", "g++", "clang++", "ziglang"):
        assert word in text
    assert "Traceback" not in text


def test_damaged_weights_are_refused_by_name(tmp_path: Path) -> None:
    whole = (TINY / "model.safetensors").read_bytes()
    damaged = {"short": whole[: len(whole) // 2], "header": b"\xff" * 8 + whole[8:], "empty": b""}
    for name, content in damaged.items():
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(content)
        done = lab(
            tmp_path, "kernel-diff", "linear_fp8", "--backend", "host", "--weights", str(file)
        )
        assert done.returncode == 2, done.stdout
        assert file.name in done.stderr
        assert "Traceback" not in done.stderr


def test_weights_of_a_checkpoint_are_used_bit_for_bit(tmp_path: Path) -> None:
    code, document = diff(tmp_path, "linear_fp8", "--weights", str(TINY))
    assert code == 0
    assert {r["case"] for r in document["results"]} and all(
        r["case"].startswith("weights:") for r in document["results"]
    )
    name = document["results"][0]["case"].removeprefix("weights:")
    code, one = diff(tmp_path, "linear_fp8", "--weights", str(TINY), "--tensor", name)
    assert (code, one["summary"]["cases"]) == (0, 1)


def test_a_missing_tensor_or_one_of_another_kind_is_refused(tmp_path: Path) -> None:
    arguments = ["kernel-diff", "linear_fp8", "--backend", "host", "--weights", str(TINY)]
    missing = lab(tmp_path, *arguments, "--tensor", "layers.0.nothing")
    assert (missing.returncode, "layers.0.nothing" in missing.stderr) == (2, True)
    other = lab(tmp_path, *arguments, "--tensor", "norm.weight")
    assert (other.returncode, "cannot take tensor norm.weight" in other.stderr) == (2, True)


def test_a_record_remembers_the_bytes_and_another_source_is_told_apart(tmp_path: Path) -> None:
    code, _ = diff(tmp_path, "cast", "-c", "tail")
    assert code == 0
    code, same = diff(tmp_path, "cast", "-c", "tail", "--against", "record:1")
    assert (code, same["results"][0]["against"]) == (0, "SAME")
    root = broken_sources(tmp_path, "f32_to_bf16(x[i])", "(bf16)(__float_as_uint(x[i]) >> 16)")
    code, other = diff(tmp_path, "cast", "-c", "tail", "--against", "record:1", DSV4_CUDA_ROOT=root)
    assert other["results"][0]["against"] == "DIFFERENT"
    assert code == 1
    assert other["exit_codes"] == [1, 5]


def test_a_json_document_serves_as_a_baseline(tmp_path: Path) -> None:
    done = lab(tmp_path, "--json", "kernel-diff", "cast", "-c", "tail", "--backend", "host")
    (tmp_path / "before.json").write_text(done.stdout)
    code, document = diff(tmp_path, "cast", "-c", "tail,one", "--against", "file:before.json")
    assert [r["against"] for r in document["results"]] == ["MISSING", "SAME"]
    assert code == 5


def test_each_case_can_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    code, document = diff(tmp_path, "cast", "-c", "tail,one", "--isolate", "--no-record")
    assert (code, document["summary"]["pass"]) == (0, 2)
    assert document["run"] is None
    assert not (tmp_path / ".lab" / "lab.db").exists()


def test_what_if_reports_and_never_decides(tmp_path: Path) -> None:
    done = lab(tmp_path, "kernel-diff", "cast", "-c", "tail", "--backend", "host",
               "--what-if", "ulp(0.1)")  # fmt: skip
    assert done.returncode == 0
    assert "would fail" in done.stdout


def test_a_store_in_a_read_only_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = lab(
        tmp_path, "--store", str(blocked / "lab.db"), "kernel-diff", "cast", "--backend", "host"
    )
    assert done.returncode == 2
    assert "PASS" not in done.stdout
    assert "Traceback" not in done.stderr


def test_an_interrupt_keeps_finished_records(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ["kernel-diff", "--backend", "host", "--relaunch", "200", "--no-time"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lab.cli", *arguments],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "PASS" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    listed = lab(tmp_path, "--json", "records", "list")
    runs = json.loads(listed.stdout)["runs"]
    assert runs[0]["results"] >= 1

"""Twins hold, every row of the matrix is there, and a difference of one bit is found and named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4 import registry
from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.sources import cuda_root
from lab import testing
from lab.record.store import Store
from lab.twins import Inputs, Trial, Twin, match, twins
from lab.twins.bench import Bench, Outputs
from lab.twins.canaries import EVERY_LAW, plantable, reach
from lab.twins.canary_laws import INTERNAL, Law
from lab.twins.session import ERROR, FAIL, PASS, run_twin

ROOT = Path(__file__).resolve().parents[2]
RESULT_KEYS = {"name", "left", "right", "inputs", "bytes", "differing", "first", "verdict"}

# What must be identical to what, and the twins that show it.
MATRIX = {
    "FP8 weights are their exact bf16": ["linear_fp8_as_bf16"],
    "many rows of a product are single rows": [
        "linear_bf16_rows", "linear_fp8_rows", "linear_bf16_slices", "linear_fp8_slices",
        "linear_bf16_grouped_as_slices", "linear_fp8_grouped_as_slices",
    ],
    "many rows of an island are single rows": [
        "island_dots_rows", "island_dots_f32_rows", "island_dots_bf16_rows",
        "island_dots_bf16_f32_rows", "lm_head_rows", "lm_head_f32_rows", "markov_bias_rows",
        "markov_bias_f32_rows", "confidence_rows",
    ],
    "selected experts are single experts": [
        "linear_fp4_mx_selected_as_single",
        "linear_fp4_nv_selected_as_single",
        "linear_fp4_mx_rows",
        "linear_fp4_nv_rows",
    ],
    "fused halves of experts are their parts": [
        "linear_fp4_mx_gate_up_as_parts", "linear_fp4_nv_gate_up_as_parts",
        "linear_fp4_mx_down_as_parts", "linear_fp4_nv_down_as_parts",
    ],
    "rows of w that share a block do not show": [
        "island_dots_rows_of_w", "island_dots_f32_rows_of_w", "island_dots_bf16_rows_of_w",
        "island_dots_bf16_f32_rows_of_w", "markov_bias_as_chain", "markov_bias_f32_as_chain",
    ],
    "an expert sum is a sequence of scatter-adds": [
        "combine_as_scatter_add", "combine_shared_as_scatter_add",
    ],
    "chunks joined are the whole list": [
        "attention_sink_split_and_join", "attention_sink_split_f32_and_join",
        "attention_sink_row_places", "attention_sink_f32_row_places",
    ],
    "queries of a round are single queries, padded or not": [
        "attention_sink_rows", "attention_sink_f32_rows", "attention_sink_padding",
        "attention_sink_f32_padding",
    ],
    "many gates and routes are single ones": [
        "hyper_split_rows", "hyper_head_gate_rows", "router_rows", "router_hash_rows",
    ],
    "fused hyper-connections are their parts": [
        "hyper_pre_in_parts", "hyper_pre_f32_in_parts", "hyper_post_pre_norm_in_parts",
        "hyper_post_pre_norm_f32_in_parts",
    ],
    "the front of a layer in two launches is its parts": [
        "project_window_in_parts", "project_blocks_in_parts", "project_indexed_in_parts",
        "finish_window_in_parts", "finish_blocks_in_parts", "finish_indexed_in_parts",
    ],
    "a step's attention in one launch is its parts": ["attention_decode_in_parts"],
    "queries and the indexer's heads in one launch are their parts": ["queries_fp8_in_parts"],
    "scores with their selection are their parts": ["indexer_select_in_parts"],
    "a product rounded at once is rounded after": ["linear_fp8_grouped_bf16_in_parts"],
    "a rotated block is its rows": ["rope_rows"],
    "many pooled blocks are single ones": ["compressor_pool_blocks", "compressor_pool_at_as_pool"],
    "a redirected list is a map": ["index_lists_redirect_as_map"],
    "the selection is a stable sort": ["topk_as_sort"],
    "one greedy pass is two": ["lm_head_argmax_as_two_passes", "argmax_rows"],
    "the confidence is one product": ["confidence_as_one_product"],
}  # fmt: skip


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Each backend that is there."""
    return testing.cuda() if request.param == "cuda" else HostDevice()


def flipped(side: Callable[[Bench, Inputs], Outputs], output: str, *place: int) -> Any:
    """The same side with the lowest bit of one element of one output flipped."""

    def run(bench: Bench, inputs: Inputs) -> Outputs:
        found = side(bench, inputs)
        found[output] = found[output].copy()
        found[output].view(f"u{found[output].itemsize}")[place] ^= 1
        return found

    return run


def adding(T: int) -> Twin:
    """A small twin of `combine` with itself."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        order = np.tile(np.arange(2, dtype=np.int32), (T, 1))
        return dict(contributions=rng.random((T, 2, 5), np.float32), order=order)

    def side(bench: Bench, inputs: Inputs) -> Outputs:
        return bench.run("combine", **inputs)

    return Twin("twice", "combine", "combine", ("combine",), (Trial("one", make),), side, side)


# ------------------------------------------------------------------ the twins themselves


@pytest.mark.parametrize("name", twins())
def test_both_sides_give_the_same_bytes(name: str, device: Device) -> None:
    result = run_twin(twins()[name], device)
    assert result.verdict == PASS, (result.first, result.error)
    assert result.size_bytes > 0


_IN_ANY_ORDER = (
    "lm_head_argmax_as_two_passes", "router_rows", "rope_rows", "attention_decode_in_parts",
    "queries_fp8_in_parts", "indexer_select_in_parts",
)  # fmt: skip


@pytest.mark.parametrize("name", _IN_ANY_ORDER)
def test_the_order_of_threads_does_not_show(name: str) -> None:
    assert run_twin(twins()[name], HostDevice(mode="shuffle", seed=5)).verdict == PASS


@pytest.mark.parametrize("row", MATRIX)
def test_every_row_of_the_matrix_has_its_twins(row: str) -> None:
    assert set(MATRIX[row]) <= set(twins())


@pytest.mark.parametrize("kernel", registry.kernels())
def test_every_kernel_says_what_nan_and_infinities_do(kernel: str) -> None:
    spec = registry.spec(kernel)
    internal, _ = INTERNAL.get(kernel, ((), ""))
    numbers = {a.name for a in spec.inputs if plantable(a)} - set(internal)
    said = set(EVERY_LAW[kernel][1] if kernel in EVERY_LAW else ())
    assert said == numbers, f"write the laws of {numbers - said} in lab/twins/canary_laws.py"


def test_laws_and_exemptions_name_what_there_is() -> None:
    assert set(EVERY_LAW) <= set(registry.kernels())
    assert {twin for _, twin in INTERNAL.values()} <= set(twins())


@pytest.mark.parametrize(
    ("law", "argument", "place", "seen"),
    [
        ("M", "x", (2, 17), [(2, 0), (2, 199)]),
        ("N", "codes", (130, 5), [(0, 130), (2, 130)]),
        ("N", "scales", (1, 0), [(0, 128), (2, 199)]),  # rows 128 to 199: a partial block
        ("", "x", (0, 0), [(0, 0), (2, 199)]),
    ],
)
def test_the_reach_of_a_law_is_the_part_it_names(
    law: str, argument: str, place: tuple[int, ...], seen: list[tuple[int, int]]
) -> None:
    spec = registry.spec("linear_fp8")
    mask = reach(Law(law, ""), spec.arg(argument), place, spec.arg("y"), (3, 200))
    assert all(mask[p] for p in seen)
    sizes = {"M": 200, "N": 3, "": 600}
    assert mask.sum() == (3 * 72 if argument == "scales" else sizes[law])


# ------------------------------------------------------------------ a difference is found and named


def test_one_flipped_bit_fails_the_twin_and_is_named() -> None:
    twin = adding(T=4)
    broken = replace(twin, run_right=flipped(twin.run_right, "y", 2, 3))
    result = run_twin(broken, HostDevice())
    assert (result.verdict, result.differing, result.size_bytes) == (FAIL, 1, 4 * 5 * 4)
    first = result.first
    assert first is not None
    assert (first.trial, first.output, first.where) == ("one", "y", {"T": 2, "D": 3})
    assert first.byte == 4 * (2 * 5 + 3)
    assert abs(int(first.left_hex, 16) - int(first.right_hex, 16)) == 1
    assert first.left != first.right


def test_the_first_of_several_differences_is_named_and_all_bytes_are_counted() -> None:
    twin = adding(T=4)
    once = flipped(twin.run_left, "y", 3, 1)
    broken = replace(twin, run_left=flipped(once, "y", 1, 4))
    result = run_twin(broken, HostDevice())
    assert result.differing == 2
    assert result.first is not None and result.first.where == {"T": 1, "D": 4}


def test_a_zero_of_the_other_sign_is_a_difference() -> None:
    twin = adding(T=1)
    zero = replace(twin, run_left=lambda b, i: {"y": np.zeros((1, 2), np.float32)})
    both = replace(zero, run_right=lambda b, i: {"y": np.array([[0.0, -0.0]], np.float32)})
    assert run_twin(both, HostDevice()).differing == 1


def test_an_element_that_neither_side_writes_is_a_difference() -> None:
    twin = adding(T=2)

    def half_written(bench: Bench, inputs: Inputs) -> Outputs:
        y = bench.fresh((4, 5), registry.spec("combine").arg("y").fmt)
        bench.run("combine", **inputs, y=y[:2])
        return {"y": bench.get(y)}

    broken = replace(twin, run_left=half_written, run_right=half_written)
    result = run_twin(broken, HostDevice())
    assert result.verdict == FAIL
    assert result.first is not None and result.first.where == {"T": 2, "D": 0}


def test_sides_that_return_other_outputs_are_an_error_of_the_twin() -> None:
    twin = adding(T=2)
    for other in ({"z": np.zeros(1)}, {"y": np.zeros((2, 4), np.float32)}, {}):
        result = run_twin(replace(twin, run_right=lambda b, i, o=other: o), HostDevice())
        assert (result.verdict, result.error_class) == (ERROR, SpecError.__name__)


def test_a_refused_launch_is_a_result_and_names_the_input() -> None:
    twin = adding(T=2)
    wrong = replace(
        twin, run_left=lambda b, i: b.run("combine", **i, D=4, y=np.zeros((2, 4), "f4"))
    )
    result = run_twin(wrong, HostDevice())
    assert (result.verdict, result.error_class) == (ERROR, LaunchError.__name__)
    assert "input 'one'" in result.error


def test_inputs_cannot_be_changed_by_a_side() -> None:
    twin = adding(T=2)

    def careless(bench: Bench, inputs: Inputs) -> Outputs:
        inputs["contributions"][0] = 0
        return twin.run_left(bench, inputs)

    with pytest.raises(ValueError, match="read-only"):
        run_twin(replace(twin, run_left=careless), HostDevice())


# ------------------------------------------------------------------ the command


def lab(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lab.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_the_document_has_the_promised_keys_and_the_run_is_kept(tmp_path: Path) -> None:
    done = lab(tmp_path, "--json", "twin", "combine_as_scatter_add", "--backend", "host")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["command"]) == (1, "twin")
    assert document["summary"] == {"twins": 1, "pass": 1, "fail": 0}
    assert {"backend", "python"} <= set(document["env"])
    (result,) = document["results"]
    assert set(result) >= RESULT_KEYS
    assert (result["name"], result["verdict"]) == ("combine_as_scatter_add", "PASS")
    assert (result["differing"], result["first"]) == (0, None)
    store = Store.open_existing(tmp_path / ".lab" / "lab.db")
    assert store is not None
    with store:
        (row,) = store.results(document["run"])
    assert (row["kernel"], row["verdict"]) == ("combine_as_scatter_add", "PASS")
    assert row["n"] == row["identical"] == result["bytes"]


def test_a_last_bit_wrong_in_a_source_exits_1_and_is_named(tmp_path: Path) -> None:
    sources = tmp_path / "cuda"
    shutil.copytree(cuda_root(), sources)
    source = sources / "combine.cu"
    text = source.read_text()
    last = "    return sum;\n"
    planted = "    if (blockIdx.x == 2 && column == 7) sum.at[0] *= 1.0f + 0x1p-23f;\n"
    assert text.count(last) == 1
    source.write_text(text.replace(last, planted + last))
    broken = {"DSV4_CUDA_ROOT": str(sources)}
    arguments = ("twin", "combine_as_scatter_add", "--backend", "host", "--no-record")
    done = lab(tmp_path, *arguments, **broken)
    assert done.returncode == 1, done.stdout + done.stderr
    for words in ("combine_as_scatter_add", "input 'any order'", "y T=2 D=7", "1 fail"):
        assert words in done.stdout
    document = json.loads(lab(tmp_path, "--json", *arguments, **broken).stdout)
    assert document["summary"] == {"twins": 1, "pass": 0, "fail": 1}
    first = document["results"][0]["first"]
    assert first["where"] == {"T": 2, "D": 7}
    assert int(first["left_hex"], 16) != int(first["right_hex"], 16)


def test_a_source_that_does_not_compile_is_an_error_and_exits_3(tmp_path: Path) -> None:
    sources = tmp_path / "cuda"
    shutil.copytree(cuda_root(), sources)
    (sources / "combine.cu").write_text("this is not C++\n")
    arguments = ("twin", "combine_as_scatter_add", "--backend", "host", "--no-record")
    done = lab(tmp_path, *arguments, DSV4_CUDA_ROOT=str(sources))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "ERROR" in done.stdout


def test_an_unknown_pattern_is_refused_with_near_names(tmp_path: Path) -> None:
    done = lab(tmp_path, "twin", "rope_row_s")
    assert done.returncode == 2
    assert "rope_rows" in done.stderr


def test_a_list_says_what_is_compared_and_runs_nothing(tmp_path: Path) -> None:
    done = lab(tmp_path, "twin", "argmax", "--list")
    assert done.returncode == 0, done.stderr
    for words in ("lm_head_f32, then argmax", "canary_argmax", "NaN loses to every number"):
        assert words in done.stdout
    assert not (tmp_path / ".lab").exists()
    document = json.loads(lab(tmp_path, "--json", "twin", "rope_rows", "--list").stdout)
    assert [t["name"] for t in document["twins"]] == ["rope_rows"]


def test_patterns_are_twins_kernels_globs_and_prefixes() -> None:
    assert [t.name for t in match(["rope_rows"])] == ["rope_rows"]
    assert {"combine_as_scatter_add"} <= {t.name for t in match(["movement_scatter_add"])}
    assert all(t.name.startswith("canary_") for t in match(["canary_*"]))
    assert len(match(["island_dots_b"])) > 2
    assert match([]) == list(twins().values())

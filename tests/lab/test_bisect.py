"""`bisect`: the layer and kernel of a planted fault, the commit of a changed bit, bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dsv4.engine.engine import Engine
from dsv4.errors import SpecError, StateError
from dsv4.runtime.hostdevice import HostDevice
from lab import revisions
from lab.debug.engine_forward import bisect_engine, watched_engine
from lab.debug.forward import Listener, bisect
from lab.debug.history import bisect_source
from lab.debug.subjects import open_model
from lab.engine_diff import engine_diff
from lab.mutations import mutated
from tests.lab.planted import ROOT, lab, planted

TINY = ROOT / "tests" / "data" / "tiny-s"


class Chain:
    """A subject of three taps; one of them adds an error."""

    def __init__(self, name: str, wrong: int = -1, factor: float = 1.01) -> None:
        self.name = name
        self.wrong = wrong
        self.factor = factor

    def run(self, tokens: np.ndarray, listen: Listener) -> None:
        value = tokens.astype(np.float64)[:, None] + 1.0
        for number, kernel in enumerate(("rms_norm", "cast_bf16", "linear_bf16")):
            value = 2 * value * (self.factor if number == self.wrong else 1.0)
            value = listen(f"tap{number}", kernel, value)


TOKENS = [np.arange(4), np.arange(3)]


def test_added_and_inherited_errors_are_told_apart() -> None:
    found = bisect(Chain("s", wrong=1), Chain("r"), TOKENS)
    assert [t.inherited > 1e-3 for t in found.taps] == [False, True, True]
    assert [t.added > 1e-3 for t in found.taps] == [False, True, False]
    assert found.first is not None
    assert (found.first.name, found.first.kernel, found.broken_in) == ("tap1", "cast_bf16", 2)


def test_what_a_contract_allows_is_not_broken() -> None:
    # 5 spacings of float32 for rms_norm, none for a cast, a share of the row for a product.
    assert bisect(Chain("s", 0, 1 + 2.0**-22), Chain("r"), TOKENS).first is None
    assert bisect(Chain("s", 1, 1 + 2.0**-22), Chain("r"), TOKENS).first is not None
    assert bisect(Chain("s", 2, 1 + 1e-5), Chain("r"), TOKENS).first is None


def test_nan_in_a_tap_is_the_first_broken() -> None:
    found = bisect(Chain("s", wrong=2, factor=float("nan")), Chain("r"), TOKENS)
    assert found.first is not None and found.first.name == "tap2"


def test_subjects_with_other_taps_are_refused() -> None:
    class Other(Chain):
        def run(self, tokens: np.ndarray, listen: Listener) -> None:
            listen("elsewhere", "", tokens.astype(np.float64))

    with pytest.raises(SpecError, match="elsewhere where r shows tap0"):
        bisect(Other("s"), Chain("r"), TOKENS)


def test_until_ends_at_a_tap() -> None:
    assert [t.name for t in bisect(Chain("s"), Chain("r"), TOKENS, until="tap1").taps] == [
        "tap0", "tap1",
    ]  # fmt: skip


POOL = "        return score[at] + ape[(i64)place * WIDTHS * K + column];"
FAULTS = {
    # Blocks of 8 rows do not overlap, and only layer 2 of the tiny model has those.
    "layer.2.compressor.ape.compressor_pool": (
        "common/pool.cuh", POOL,
        POOL.replace("return ", "return (Overlap || place ? 0 : 0.25f) + "),
    ),
    # Only layers with an indexer quantise to FP4: layer 1 is the first.
    "layer.1.indexer.wq_b.act_quant_fp4_inplace": (
        "act_quant.cu", "const float scale = exp2_of(k), inverse = exp2_of(-k);",
        "const float scale = exp2_of(k + 1), inverse = exp2_of(-k - 1);",
    ),
    # One launch joins two sub-blocks in a step, and none does in a prompt.
    "step1.layer.0.ffn_hyper.hyper_post_pre_norm_f32": (
        "hyper.cu", "row.y[d] = next.gain[d] * (y[q] * factor);",
        "row.y[d] = next.gain[d] * (y[q] * factor) * 1.001f;",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny() -> Engine:
    """The engine of the tiny checkpoint, watched."""
    return watched_engine(TINY, HostDevice(), max_seq=20)


def test_no_launch_of_the_right_engine_leaves_its_contract(tiny: Engine) -> None:
    found, broken = bisect_engine(tiny, [np.arange(20) % 256, np.arange(20) * 7 % 256], steps=2)
    assert (found.first, broken) == (None, None)
    by_name = {t.name: t for t in found.taps}
    wanted = {"embed.movement_embed", "layer.0.table.router_hash", "layer.1.wq_a.gemm_bf16",
              "layer.3.indexer.wq_b.act_quant_fp4_inplace", "layer.2.sink.attention_sink_f32",
              "step1.layer.1.wq_b.linear_fp8", "step2.head.lm_head_f32"}  # fmt: skip
    assert wanted <= set(by_name)
    # Kernels really ran: their float32 rounding shows. What came before is in the free pass only.
    assert 0 < by_name["layer.2.q_norm.rms_norm_f32"].added < 1e-6
    last = by_name["step2.head.lm_head_f32"]
    assert last.inherited > 100 * last.added


@pytest.mark.parametrize(
    "arms",
    [{"quantisers": "off"}, {"decode_path": "legacy"}, {"prefill_gemm": "rows"},
     {"dense_input": "fp8", "dots_arm": "f64"}],
    ids=lambda arms: " ".join(f"{k}={v}" for k, v in arms.items()),
)  # fmt: skip
def test_other_arms_hold_too_and_run_other_kernels(tiny: Engine, arms: dict[str, str]) -> None:
    tokens = [np.arange(12) * 5 % 256]
    engine = watched_engine(TINY, HostDevice(), switches=arms, max_seq=12)
    found, _ = bisect_engine(engine, tokens, steps=1)
    plain, _ = bisect_engine(tiny, tokens, steps=1)
    assert found.first is None
    assert {t.name for t in found.taps} - {t.name for t in plain.taps}


@pytest.mark.parametrize("place", FAULTS)
def test_a_planted_kernel_is_named_with_its_layer_by_added_error(
    tmp_path: Path, place: str
) -> None:
    wrong = planted(tmp_path, *FAULTS[place])
    command = ("--json", "bisect", "forward", "--tiny", "--samples", "2", "--backend", "host")
    done = lab(tmp_path, *command, DSV4_CUDA_ROOT=wrong)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    first, kernel = document["first"], place.rpartition(".")[2]
    assert (first["tap"], first["kernel"], document["broken_in"]) == (place, kernel, 2)
    # Every launch of that kernel is wrong by itself, and no launch of another one.
    broken = {t["kernel"] for t in document["taps"] if t["bound_use"] > 1}
    assert kernel in broken and {k.partition("_")[0] for k in broken} == {kernel.partition("_")[0]}
    assert document["result"]["verdict"] == "FAIL"
    # The launch alone fails on the same bytes, and is right again with the right source.
    assert lab(tmp_path, "replay", document["replay"], DSV4_CUDA_ROOT=wrong).returncode == 1
    assert lab(tmp_path, "replay", document["replay"]).returncode == 0


def test_a_wrong_argument_is_no_kernels_fault_and_is_left_to_model_diff(tiny: Engine) -> None:
    ids = np.arange(20) * 3 % 256
    model = open_model(TINY, "engine")
    with mutated("no sink"):
        found, _ = bisect_engine(tiny, [ids])
        parts = engine_diff(tiny, model, ids)
    assert found.first is None
    assert next(p.name for p in parts if not p.passed) == "layer0.attn"


def test_an_engine_that_is_not_watched_is_refused() -> None:
    engine = Engine.load(TINY, backend="host", max_seq=8)
    with pytest.raises(StateError, match="unwatched"):
        bisect_engine(engine, [np.arange(4)])


def test_until_ends_at_a_launch(tiny: Engine) -> None:
    found, _ = bisect_engine(tiny, [np.arange(9)], until="layer.0.q_norm")
    assert found.taps[-1].name == "layer.0.q_norm.rms_norm_f32"


def test_a_fault_planted_in_the_weights_of_a_layer_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(TINY, folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(n for n in header if ".2." in n and n.endswith("q_norm.weight"))
    begin = 8 + size + header[name]["data_offsets"][0]
    data[begin + 1] ^= 0x01  # an exponent bit of the first gain
    file.write_bytes(bytes(data))
    done = lab(tmp_path, "bisect", "forward", "--weights", str(folder), "--against", str(TINY),
               "--subject", "oracle", "--samples", "2")  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "first broken: layer.2.attention.q_norm, kernel rms_norm, in 2 of 2" in done.stdout


def test_another_law_is_named_at_its_first_rounding_point(tmp_path: Path) -> None:
    done = lab(tmp_path, "bisect", "forward", "--tiny", "--subject", "oracle", "--law", "deq64",
               "--against-law", "smooth", "--samples", "1")  # fmt: skip
    assert done.returncode == 1
    assert "first broken: layer.0.attention.kv_quant, kernel act_quant_fp8_inplace" in done.stdout


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with five commits of cuda/: the third does not build, the fourth moves bits."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "cuda", root / "cuda")
    monkeypatch.setattr(revisions, "ROOT", root)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for number in range(5):
        source = root / "cuda" / "cast.cu"
        text = source.read_text()
        if number == 2:
            text = text.replace("y[i] = f32_to_bf16(x[i]);", "y[i] = nonsense(x[i]);")
        if number == 3:
            text = text.replace("y[i] = nonsense(x[i]);",
                                "y[i] = (bf16)(__float_as_uint(x[i]) >> 16);")  # fmt: skip
        source.write_text(f"{text}// commit {number}\n")
        git(root, "init", "-q", "-b", "main") if number == 0 else None
        git(root, "add", "cuda")
        git(root, "commit", "-q", "-m", f"commit {number}")
        git(root, "tag", f"c{number}")
    return root


def git(root: Path, *arguments: str) -> None:
    """Git, independent of the settings of whoever runs the tests."""
    names = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t",
             "GIT_COMMITTER_EMAIL": "t@t", "GIT_CONFIG_GLOBAL": "/dev/null"}  # fmt: skip
    subprocess.run(["git", *arguments], cwd=root, check=True, env={**os.environ, **names})


CAST = ["cast", "-c", "tail", "--backend", "host"]


def test_the_commit_that_moved_the_bits_is_found_past_one_that_does_not_build(
    history: Path,
) -> None:
    found = bisect_source("c0", "c4", CAST, on="bits")
    assert found.first.subject.endswith("commit 3")
    assert "123 of 257" in found.first.why
    assert len(found.unsure) == 1  # the one that does not build may have been it


def test_the_commit_that_broke_the_contract_is_found(history: Path) -> None:
    # On the contract, a source that does not build is as bad as a wrong one.
    assert bisect_source("c0", "c4", CAST, on="contract").first.subject.endswith("commit 2")


def test_ends_that_do_not_differ_are_refused(history: Path) -> None:
    with pytest.raises(SpecError, match="is as at"):
        bisect_source("c0", "c1", CAST, on="bits")
    with pytest.raises(SpecError, match="no commit between"):
        bisect_source("c1", "c1", CAST, on="bits")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bisect", "forward"], ["--weights", "--tiny"]),
        (["bisect", "forward", "--tiny", "--weights", "x"], ["--tiny"]),
        (["bisect", "forward", "--weights", "nowhere"], ["nowhere"]),
        (["bisect", "forward", "--tiny", "--against", "x"], ["--subject oracle"]),
        (["bisect", "forward", "--tiny", "--tokens", "4", "--steps", "4"], ["--steps 4", "prompt"]),
        (
            ["bisect", "forward", "--tiny", "--law", "deq64", "--backend", "host"],
            ["law deq64", "smooth"],
        ),
        (
            ["bisect", "forward", "--tiny", "--arm", "dots_arm=f99", "--backend", "host"],
            ["DSV4_DOTS_ARM=f99"],
        ),
        (["bisect", "source", "main", "cast"], ["GOOD..BAD"]),
        (["bisect", "source", "nope..HEAD", "cast"], ["nope"]),
    ],
)
def test_bad_input_is_refused_in_words(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = lab(tmp_path, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr

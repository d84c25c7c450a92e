"""A run of seconds on a CPU: it learns, stops and goes on, and exports what it trained."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.reader import Checkpoint
from dsv4.errors import Refusal
from oracle.blocks import decode_mxfp4, decode_nvfp4
from tools.train.corpus import Corpus, read_corpus

torch = pytest.importorskip("torch", reason="training needs torch: pip install dsv4-lab[train]")

from tools.train import export as exports  # noqa: E402
from tools.train import run as whole  # noqa: E402
from tools.train.__main__ import main  # noqa: E402
from tools.train.settings import config_content, settings_of  # noqa: E402
from tools.train.stored import read_weights  # noqa: E402

CPU = torch.device("cpu")
MODULES = ("textwrap.py", "string.py", "shlex.py", "timeit.py")
SHORT: dict[str, Any] = {"size": "smoke", "length": 64, "judged_windows": 4}
WHOLE = settings_of(SHORT | {"steps": 24, "draft_steps": 16})
BRIEF = settings_of(SHORT | {"steps": 4, "draft_steps": 3, "batch": 2, "draft_batch": 2})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Three modules of the running interpreter to learn from, one held out."""
    folder = tmp_path_factory.mktemp("library")
    for name in MODULES:
        shutil.copy(Path(sysconfig.get_path("stdlib")) / name, folder / name)
    return read_corpus(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("run")
    whole.run(corpus, WHOLE, folder, device=CPU, quiet=True)
    return folder


def log(folder: Path, phase: str) -> list[dict[str, Any]]:
    """The log of one phase."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [e for e in map(json.loads, lines) if e["phase"] == phase]


def test_losses_of_trunk_indexer_and_drafter_fall(trained: Path) -> None:
    trunk, drafter = log(trained, "trunk"), log(trained, "drafter")
    assert len(trunk) == 24 and len(drafter) == 16
    assert trunk[-1]["loss_bits"] < 0.7 * trunk[0]["loss_bits"]
    assert trunk[-1]["index"] < trunk[0]["index"]
    assert drafter[-1]["loss_bits"] < 0.7 * drafter[0]["loss_bits"]


def test_the_last_part_trains_with_the_exports_codes(trained: Path) -> None:
    coded = [e["coded"] for e in log(trained, "trunk")]
    assert coded == sorted(coded) and 0 < sum(coded) < len(coded)
    assert log(trained, "drafter")[-1]["coded"]


def test_the_result_says_what_was_trained_and_how_well(trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text(encoding="utf-8"))
    assert 0 < result["bits_per_byte"]["engine"] < 8
    assert result["corpus"]["held_out"]["modules"] == ["timeit"]
    assert result["steps"] == {"trunk": 24, "drafter": 16}
    assert result["corpus"]["held_out"]["sha256"] in (trained / "card.md").read_text("utf-8")
    assert "<path" in (trained / "loss.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("layout", ["0731", "0731-nvfp4"])
def test_exports_pass_the_census(trained: Path, layout: str) -> None:
    census = open_artifact(trained / layout).census
    assert census.layout.lineage == "dspark"
    assert bool(census.layout.nvfp4) == layout.endswith("nvfp4")


def test_nvfp4_experts_are_the_same_numbers(trained: Path) -> None:
    official, nvfp4 = (Checkpoint.open(trained / name) for name in ("0731", "0731-nvfp4"))
    for matrix in ("w1", "w2", "w3"):
        name = f"layers.1.ffn.experts.2.{matrix}"
        want = decode_mxfp4(official.tensor(f"{name}.weight"), official.tensor(f"{name}.scale"))
        got = decode_nvfp4(
            nvfp4.tensor(f"{name}.weight"),
            nvfp4.tensor(f"{name}.weight_scale"),
            float(nvfp4.tensor(f"{name}.weight_scale_2")),
        )
        assert want.any() and np.array_equal(got, want)


def test_an_interrupted_run_ends_like_one_that_was_not(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.run(corpus, BRIEF, tmp_path / "straight", device=CPU, quiet=True)
    monkeypatch.setattr(whole, "_SAVE_EVERY_S", -1.0)
    real, stops = whole._report, [("trunk", 1), ("trunk", 3), ("drafter", 1)]

    def report(it: whole.Run, phase: str, step: int, share: float, numbers: dict[str, Any]) -> None:
        if stops and (phase, step) == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt
        real(it, phase, step, share, numbers)

    monkeypatch.setattr(whole, "_report", report)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            whole.run(corpus, BRIEF, tmp_path / "stopped", device=CPU, quiet=True)
    whole.run(corpus, BRIEF, tmp_path / "stopped", device=CPU, quiet=True)
    straight, stopped = (
        (tmp_path / name / "0731" / "model.safetensors").read_bytes()
        for name in ("straight", "stopped")
    )
    assert straight == stopped
    assert [e["step"] for e in log(tmp_path / "stopped", "trunk")] == [0, 1, 2, 3]


def test_a_run_that_left_in_time_goes_on(tmp_path: Path, corpus: Corpus) -> None:
    left = whole.run(corpus, BRIEF, tmp_path, device=CPU, quiet=True, leave_after_s=0.0)
    assert left is None
    assert not (tmp_path / "0731").exists()
    assert len(log(tmp_path, "trunk")) == 1
    done = whole.run(corpus, BRIEF, tmp_path, device=CPU, quiet=True)
    assert done is not None and done["steps"] == {"trunk": 4, "drafter": 3}


def test_other_settings_do_not_go_on_with_a_run(trained: Path, corpus: Corpus) -> None:
    other = settings_of(SHORT | {"steps": 24, "draft_steps": 16, "rate": 0.5})
    with pytest.raises(Refusal, match=r"rate 0\.02 \(now 0\.5\)"):
        whole.run(corpus, other, trained, device=CPU, quiet=True)


def test_another_corpus_does_not_go_on_with_a_run(trained: Path) -> None:
    with pytest.raises(Refusal, match="was recorded"):
        whole.run(read_corpus(), WHOLE, trained, device=CPU, quiet=True)


def test_an_export_that_reads_back_otherwise_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.load(trained / "state.pt", weights_only=True)["weights"]
    real = exports.encode_mxfp4

    def wrong(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        packed, scales = real(w)
        packed[0, 0] ^= 1
        return packed, scales

    monkeypatch.setattr(exports, "encode_mxfp4", wrong)
    with pytest.raises(Refusal, match="experts.w1 reads back with"):
        exports.export(config_content("smoke"), weights, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_diverged_are_not_exported(trained: Path, tmp_path: Path) -> None:
    weights = torch.load(trained / "state.pt", weights_only=True)["weights"]
    weights["layers.0.attn.wkv"][0, 0] = float("nan")
    with pytest.raises(Refusal, match="NaN or infinity"):
        exports.export(config_content("smoke"), weights, tmp_path / "out")


def test_the_command_scores_texts_by_stored_weights(trained: Path, corpus: Corpus) -> None:
    text = trained / "text.py"
    text.write_bytes(corpus.held_out[0].content[:500])
    done = CliRunner().invoke(main, ["score", str(trained / "0731"), str(text)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert 0 < found["engine"] < 8 and abs(found["engine"] - found["smooth"]) < 0.5


def test_the_command_exports_a_run_again(trained: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["export", "--run", str(trained), "--out", str(tmp_path / "x")])
    assert done.exit_code == 0, done.output
    first, again = (p / "model.safetensors" for p in (trained / "0731", tmp_path / "x"))
    assert first.read_bytes() == again.read_bytes()


def test_a_checkpoint_becomes_nvfp4_without_its_run(trained: Path, tmp_path: Path) -> None:
    there, out = str(trained / "0731"), str(tmp_path / "x")
    layout = ["--layout", "0731-nvfp4"]
    done = CliRunner().invoke(main, ["export", "--run", there, "--out", out, *layout])
    assert done.exit_code == 0, done.output
    assert open_artifact(tmp_path / "x").census.layout.nvfp4
    again = read_weights(tmp_path / "x")[1]
    for name, w in read_weights(trained / "0731-nvfp4")[1].items():
        assert torch.equal(w, again[name]), name


def test_a_folder_without_a_run_is_not_exported(tmp_path: Path) -> None:
    out = str(tmp_path / "x")
    done = CliRunner().invoke(main, ["export", "--run", str(tmp_path), "--out", out])
    assert isinstance(done.exception, Refusal)
    assert "neither the state of a run nor a checkpoint" in str(done.exception)

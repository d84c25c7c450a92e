"""model-diff: figures on recorded folders, what names the first fault, and what is refused."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.cli.main import main
from lab.model_diff import Tokens, model_diff, worst_row
from oracle.conditions import Conditions
from oracle.laws import LAWS
from tests.goldens import golden_folder

TINY = golden_folder("tiny-s")
CHECK_KEYS = {"name", "n", "max_abs", "scale", "rel_max", "bound", "pass"}


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line."""
    with pytest.raises(SystemExit) as left:
        main(["model-diff", *map(str, args)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def copied(folder: Path, to: Path) -> Path:
    """A copy of a recorded folder that a test may damage."""
    return Path(shutil.copytree(folder, to / folder.name, copy_function=shutil.copyfile))


def damage(file: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the stored bytes of one tensor."""
    raw = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    begin, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    part = np.frombuffer(raw, np.uint8, end - begin, 8 + length + begin).copy()
    change(part)
    raw[8 + length + begin : 8 + length + end] = part.tobytes()
    file.write_bytes(raw)


def rescale(part: np.ndarray) -> None:
    """Multiply float32 numbers by 1.01."""
    part.view(np.float32)[:] *= 1.01


def set_config(folder: Path, **keys: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def test_the_committed_folder_is_met_without_quantisers(capsys):
    code, out, _ = run(capsys, TINY)
    assert code == 0
    assert "smooth.prefill.layer3" in out and "smooth.spec.confidence" in out
    assert "97 compared, 97 agree, 0 disagree above the margin" in out
    assert "9 checks, 0 broken" in out


@pytest.mark.parametrize("law", ["smooth", "ref"])
def test_the_document_has_the_agreed_form(capsys, law):
    code, out, err = run(capsys, TINY, "--law", law, "--json")
    document = json.loads(out)
    assert code == 0 and "checks" in err
    assert set(document) == {"schema", "command", "subject", "law", "checks", "tokens", "summary"}
    assert (document["schema"], document["command"]) == (1, "model-diff")
    assert (document["subject"], document["law"]) == ("oracle", law)
    assert all(set(check) == CHECK_KEYS for check in document["checks"])
    assert all(check["rel_max"] <= check["bound"] for check in document["checks"])
    assert set(document["tokens"]) == {"compared", "agree", "disagree_above_margin"}
    assert document["summary"] == {"pass": len(document["checks"]), "fail": 0}


def test_ref_has_every_rounding_in_its_place():
    report = model_diff(TINY, law="ref")
    figures = {c.name: c.rel_max for c in report.checks}
    for layer in range(4):
        assert figures[f"prefill.layer{layer} median row"] <= 1e-5
        assert figures[f"prefill.layer{layer} differing share"] <= 0.4
    assert report.broken == () and len(report.layers) == 4


def test_one_misplaced_rounding_breaks_ref(monkeypatch, capsys):
    def one_rounding(cond: Conditions, q: np.ndarray) -> np.ndarray:
        mean = np.mean(q * q, axis=-1, keepdims=True)
        return cond.law.rounded(q / np.sqrt(mean + cond.config.norm_eps))

    monkeypatch.setattr(Conditions, "head_norm", one_rounding)
    code, out, _ = run(capsys, TINY, "--law", "ref")
    assert code == 1
    assert "first out of bounds: prefill.layer0 median row" in out
    report = model_diff(TINY, law="ref")
    assert all(e.identical < 0.5 for e in report.layers)


@pytest.mark.parametrize("law", [name for name in LAWS if name not in ("smooth", "ref")])
def test_laws_without_records_are_told_and_not_judged(law):
    report = model_diff(TINY, law=law)
    assert report.checks == () and report.broken == ()
    assert any(c.name == "decode.logits" for c in report.told)
    assert len(report.layers) == 4 and report.tokens.compared > 0


def test_the_first_layer_that_goes_wrong_is_named(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    damage(folder / "model.safetensors", "layers.2.attn.attn_sink", rescale)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert "first out of bounds: smooth.prefill.layer2 in row" in out
    assert f"dsv4-lab model-diff {folder} --law smooth" in out
    errors = {e.layer: e for e in model_diff(folder).layers}
    # Layer 3 only passes on what layer 2 added.
    assert errors["prefill.layer2"].added > 1e-5 > errors["prefill.layer2"].inherited
    assert errors["prefill.layer3"].inherited > 1e-5 > errors["prefill.layer3"].added


def test_a_wrong_recorded_row_is_named_with_its_step(tmp_path):
    folder = copied(TINY, tmp_path)

    def one_row(part: np.ndarray) -> None:
        part.view(np.float32).reshape(24, 256)[5] += 0.01

    damage(folder / "golden.safetensors", "smooth.decode.logits", one_row)
    report = model_diff(folder)
    assert [(c.name, c.row) for c in report.broken] == [("smooth.decode.logits", 5)]


def test_a_drafted_token_that_is_clearly_wrong_is_counted(tmp_path):
    folder = copied(TINY, tmp_path)

    def other_id(part: np.ndarray) -> None:
        ids = part.view(np.int32).reshape(24, 4)
        ids[7, 2] = (ids[7, 2] + 1) % 256

    damage(folder / "golden.safetensors", "smooth.spec.out_ids", other_id)
    report = model_diff(folder)
    # The draft after it depends on it, and is not compared.
    assert report.tokens == Tokens(compared=96, agree=95, disagree_above_margin=1)
    assert [c.name for c in report.broken] == ["tokens above margin"]


def test_nan_never_passes():
    want = np.ones((3, 4))
    got = want.copy()
    got[1, 2] = np.nan
    check = worst_row("x", got, want)
    assert check.row == 1 and not np.isfinite(check.rel_max)
    report = worst_row("x", np.zeros((2, 2)), np.zeros((2, 2)))
    assert report.rel_max == 0.0


@pytest.mark.parametrize("missing", ["config.json", "golden.safetensors", "model.safetensors"])
def test_a_folder_that_lacks_a_part_is_refused(tmp_path, capsys, missing):
    folder = copied(TINY, tmp_path)
    (folder / missing).unlink()
    code, out, err = run(capsys, folder)
    assert code == 2 and not out
    assert missing.removeprefix("model") in err


def test_a_configuration_that_breaks_a_rule_is_refused(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    set_config(folder, n_shared_experts=2)
    code, out, err = run(capsys, folder, "--json")
    assert code == 2 and "n_shared_experts" in err
    assert json.loads(out)["error"]["class"] == "Refusal"


def test_a_configuration_that_is_no_json_is_refused(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    (folder / "config.json").write_text("{")
    code, _, err = run(capsys, folder)
    assert code == 2 and "cannot be used" in err


def test_a_scale_that_is_nan_is_refused(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    damage(folder / "model.safetensors", "layers.1.attn.wkv.scale", lambda part: part.fill(0xFF))
    code, _, err = run(capsys, folder)
    assert code == 2 and "layers.1.attn.wkv.scale" in err and "0xFF" in err


def test_more_ids_than_positions_are_refused(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    set_config(folder, max_position_embeddings=40)
    code, _, err = run(capsys, folder)
    assert code == 2 and "the cache holds 40" in err


def test_tensors_of_another_configuration_are_refused(tmp_path, capsys):
    folder = copied(TINY, tmp_path)
    set_config(folder, n_routed_experts=8)
    code, _, err = run(capsys, folder)
    assert code == 2 and "the configuration wants" in err


@pytest.mark.parametrize(
    ("option", "value"), [("--law", "exakt"), ("--subject", "engin"), ("--against", "golden")]
)
def test_an_unknown_choice_is_a_usage_error(capsys, option, value):
    code, _, err = run(capsys, TINY, option, value)
    assert code == 2 and option in err


@pytest.mark.parametrize("law", ["smooth", "ref"])
@pytest.mark.parametrize(
    "name", ["tiny-a", "tiny-nextn", pytest.param("tiny-long", marks=pytest.mark.stress)]
)
def test_other_recorded_folders_are_met(name, law):
    report = model_diff(golden_folder(name), law=law)
    assert report.broken == ()
    if law == "smooth":
        assert report.tokens.disagree_above_margin == 0
        assert any(c.name.endswith("logits") for c in report.checks)

"""`dsv4-lab census` and `dsv4-lab mint` from outside, and the list of rules as a whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsv4.checkpoint.rules import RULES, refuse
from lab.cli.main import main
from tests.checkpoint import (
    test_broken_headers,
    test_config,
    test_reader,
    test_values,
)
from tests.checkpoint.conftest import Minted

HERE = Path(__file__).parent
TINY_S = HERE.parent / "data" / "tiny-s"


def lab(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    done = lab(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_census_says_what_a_checkpoint_is() -> None:
    done = lab("census", str(TINY_S))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "DeepSeek-V4, DSpark drafter (0731), 2 stages, FP8 + MXFP4"
    assert "4 layers (1 window, 2 fine, 1 coarse; 1 hash-routed)" in lines[1]
    assert lines[2].startswith("360 tensors in 1 file, 3784564 bytes")
    assert re.search(r"^total +360 +3784564 .*100.00$", done.stdout, re.MULTILINE)
    assert re.search(r"^tail: drafter +5 +49442 ", done.stdout, re.MULTILINE)
    assert lines[-1] == "headers are valid"


def test_census_as_a_document_adds_up(minted: Minted) -> None:
    found = document("census", str(minted("nvfp4")))
    parts = [*found["components"]["trunk"].values(), *found["components"]["tail"].values()]
    for total in (parts, list(found["dtypes"].values())):
        assert sum(p["tensors"] for p in total) == found["tensors"] == 748
        assert sum(p["bytes"] for p in total) == found["bytes"] == 9_975_464
    assert sum(found["blocks"].values()) == found["bytes"]
    assert (found["lineage"], found["stages"]) == ("nextn", 1)
    assert found["precision"] == "FP8 + NVFP4, tail MXFP4"
    assert found["layers"] == ["window", "fine", "coarse", "fine", "coarse"]


def test_census_reads_values_when_asked(minted: Minted, tmp_path: Path) -> None:
    assert document("census", str(minted("0731")), "--values")["values_checked"] is True
    bad = test_values.edited(
        minted("0731"), tmp_path / "bad", "head.weight", test_values.put((0, 0), 0x7FC0)
    )
    assert lab("census", str(bad)).exit_code == 0
    done = lab("census", str(bad), "--values")
    assert done.exit_code == 2
    assert "rule finite-weights" in done.stderr and "head.weight[0, 0]" in done.stderr


def test_census_refuses_by_name_in_text_and_document(tmp_path: Path) -> None:
    file = test_broken_headers.headers_file(
        tmp_path, test_broken_headers.without("layers.0.attn.wq_a.weight")
    )
    done = lab("census", str(file))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "rule missing-tensor" in done.stderr and "layers.0.attn.wq_a.weight" in done.stderr
    told = lab("census", str(file), "--json")
    error = json.loads(told.stdout)["error"]
    assert told.exit_code == 2
    assert error["class"] == "Refusal" and "missing-tensor" in error["message"]


def test_census_of_files_without_data_is_asked_for(minted: Minted, tmp_path: Path) -> None:
    for file in minted("official").iterdir():
        content = file.read_bytes()
        if file.suffix == ".safetensors":
            content = content[: 8 + int.from_bytes(content[:8], "little")]
        (tmp_path / file.name).write_bytes(content)
    cut = lab("census", str(tmp_path))
    assert cut.exit_code == 2 and "rule truncated-shard" in cut.stderr
    assert document("census", str(tmp_path), "--headers-only")["tensors"] == 421
    assert lab("census", str(tmp_path), "--headers-only", "--values").exit_code == 2


def test_census_of_a_folder_that_is_not_there_is_a_usage_error() -> None:
    done = lab("census", "nowhere")
    assert done.exit_code == 2 and "nowhere" in done.stderr


def test_mint_makes_what_census_accepts(tmp_path: Path) -> None:
    out = tmp_path / "made"
    made = document(
        "mint", str(out), "--layout", "nvfp4", "--layers", "3", "--experts", "4", "--seed", "9"
    )
    found = document("census", str(out), "--values")
    assert made["bytes"] == found["bytes"] and made["tensors"] == found["tensors"]
    assert (made["seed"], made["layers"], made["experts"]) == (9, 3, 4)
    assert found["layers"] == ["window", "fine", "coarse"]
    again = lab("mint", str(out))
    assert again.exit_code == 2 and "rule mint-target" in again.stderr


def test_mint_of_one_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert lab("mint", str(tmp_path / name), "--layers", "1", "--seed", "3").exit_code == 0
    files = sorted((tmp_path / "one").iterdir())
    assert len(files) == 3
    assert all(f.read_bytes() == (tmp_path / "two" / f.name).read_bytes() for f in files)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--layers", "6"], "mint-size"),
        (["--experts", "1"], "mint-size"),
        (["--layers", "0"], "--layers"),
        (["--layout", "int4"], "--layout"),
        (["--size", "large"], "--size"),
        (["--backend", "tpu"], "--backend"),
    ],
)
def test_mint_refuses_what_it_cannot_make(arguments: list[str], word: str, tmp_path: Path) -> None:
    done = lab("mint", str(tmp_path / "out"), *arguments)
    assert done.exit_code == 2 and word in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_refusal_says_rule_finding_place_and_remedy() -> None:
    lines = str(refuse("e8m0-nan", "x[3] is 0xff", "one.safetensors", "fetch it again")).split("\n")
    assert lines == [
        "rule e8m0-nan: no scale byte is 0xFF",
        "  found: x[3] is 0xff",
        "  in one.safetensors",
        "  fetch it again",
    ]


def test_every_rule_is_broken_by_some_test() -> None:
    tables = (
        test_config.BROKEN, test_broken_headers.BROKEN, test_reader.DAMAGED,
        test_reader.BROKEN_FOLDERS, test_values.BROKEN,
    )  # fmt: skip
    broken = {part for table in tables for row in table.values() for part in row if part in RULES}
    texts = " ".join(f.read_text(encoding="utf-8") for f in HERE.glob("test_*.py"))
    broken |= set(re.findall(r"rule ([a-z0-9-]+)", texts))
    assert set(RULES) - broken == set()

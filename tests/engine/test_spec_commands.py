"""spec, gate and generate --spec: documents, exit codes, and faults that gates must notice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4.checkpoint.agreeable import is_changed, successors
from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.engine import speculate as loop_module
from dsv4.errors import Refusal
from dsv4.runtime.hostdevice import HostDevice
from lab.cli.main import main
from lab.gates import all_gates, bench_of, default_gates, run_gate
from tests.engine.engines import tokens
from tests.engine.speculation import plain_tokens, speaking_engine
from tests.goldens import golden_folder

TINY = golden_folder("tiny-s")


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, args)))
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_spec_tells_identity_rounds_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "spec", TINY, "--ids", "3,5,7", "-n", 12, "--depth", "2..4", "--accept", 0.8,
        "--backend", "host", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0 and document["schema"] == 1 and document["command"] == "spec"
    assert document["identity"] is True and document["first_difference"] is None
    assert document["tokens"] == document["plain"] and len(document["tokens"]) == 12
    assert [d["depth"] for d in document["depths"]] == [2, 3, 4]
    for made in document["rounds"]:
        assert {"start", "drafted", "accepted", "verified", "emitted"} <= set(made)
        assert made["accepted"] <= made["verified"] <= len(made["drafted"])
    assert [c["rows"] for c in document["cost_of_t"]] == list(range(1, 7))
    assert document["cost_of_t"][0]["relative"] == 1.0 and len(document["cost_fit"]) == 2
    assert document["tokens_per_round"] > 1


def test_spec_takes_the_drafter_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "spec", TINY, "--ids", "3,5,7", "-n", 4, "--no-cost", "--backend", "host"
    )
    assert code == 0 and out.startswith("SAME  depth 4: 4 tokens")


def test_spec_leaves_with_1_where_the_stream_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "accept_prefix", lambda asked, _: len(asked) - 1)
    code, out, _ = run(
        capsys, "spec", TINY, "--ids", "3,5,7", "-n", 8, "--no-cost", "--backend", "host"
    )
    assert code == 1 and out.startswith("FAIL  depth 4") and "from token" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--depth", "x"), "no number of rows"),
        (("--depth", "0"), "names no rows"),
        (("--depth", "3..1"), "names no rows"),
        (("--accept", "2"), "--accept"),
        (("--temperature", "-1"), "--temperature"),
        (("--arm", "drafter=mtp"), "DSV4_DRAFTER=mtp"),
    ],
    ids=str,
)
def test_spec_refuses_with_what_to_do(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "spec", TINY, "--ids", "1", *words, "--backend", "host")
    assert code == 2 and says in err and not out


def test_generate_with_drafts_prints_the_tokens_of_generate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for drawn in ((), ("--temperature", "0.8", "--seed", "3", "--top-k", "9")):
        words = ("generate", TINY, "--ids", "1,2,3", "-n", 8, "--backend", "host", *drawn, "--json")
        plain = json.loads(run(capsys, *words)[1])
        drafted = json.loads(run(capsys, *words, "--spec")[1])
        assert plain["tokens"] == drafted["tokens"] and plain["rounds"] is None
        assert drafted["rounds"] >= 2 and drafted["arms"]["drafter"] == "dspark"


@pytest.mark.parametrize("name", ["spec", "state", "rings"])
def test_gates_hold_and_notice_every_fault(name: str) -> None:
    bench = bench_of(TINY, backend="host", switches={}, count=45)
    outcome = run_gate(name, bench, red=True)
    assert outcome.finding.holds, outcome.finding
    assert set(outcome.red) == set(all_gates()[name].red) and not outcome.vacuous


def test_rings_are_gated_where_something_drafts(tmp_path: Path) -> None:
    for layout in ("official", "nextn"):
        write_checkpoint(plan_mint("tiny", layout), tmp_path / layout, device=HostDevice())
    silent = bench_of(tmp_path / "official", backend="host", switches={}, count=24)
    assert "rings" not in default_gates(silent) and "spec" in default_gates(silent)
    with pytest.raises(Refusal, match="behind its trunk"):
        run_gate("rings", silent, red=False)
    drafting = bench_of(tmp_path / "nextn", backend="host", switches={}, count=30)
    assert "rings" in default_gates(drafting)
    outcome = run_gate("rings", drafting, red=True)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", ["state", "rings"])
def test_a_gate_without_room_for_a_round_is_refused(name: str) -> None:
    bench = bench_of(TINY, backend="host", switches={}, count=45)
    short = replace(bench, ids=bench.ids[: bench.prompt + 1])
    with pytest.raises(Refusal, match=r"(?s)the gate .* tokens.*more --tokens"):
        run_gate(name, short, red=False)


def test_a_made_language_is_one_cycle_that_the_trunk_speaks() -> None:
    engine = speaking_engine("0731", 1.0)
    plan = plan_mint("tiny", "0731", seed=1, agreeing=1.0)
    after = successors(plan)
    seen, token = set(), 0
    while token not in seen:
        seen.add(token)
        token = int(after[token])
    assert len(seen) == plan.config.vocab_size
    made, _ = plain_tokens(engine, tokens(17), 20)
    assert [int(after[t]) for t in made[:-1]] == list(made[1:])


def test_a_made_language_changes_what_it_must_and_files_hold_it(tmp_path: Path) -> None:
    device, plan = HostDevice(), plan_mint("tiny", "nvfp4", seed=1, agreeing=0.5)
    plain = plan_mint("tiny", "nvfp4", seed=1)
    for name in plan.entries:
        same = plan.tensor(device, name).tobytes() == plain.tensor(device, name).tobytes()
        assert same != is_changed(plan, name), name
    write_checkpoint(plan, tmp_path / "made", device=device)
    stored = open_artifact(tmp_path / "made").tensors
    for name in ("head.weight", "layers.0.ffn.experts.1.w2.weight_scale_2", "mtp.0.e_proj.scale"):
        assert stored.tensor(name).tobytes() == plan.tensor(device, name).tobytes()
    with pytest.raises(Refusal, match="from 0 to 1"):
        plan_mint("tiny", "0731", agreeing=1.5)

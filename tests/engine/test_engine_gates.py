"""Gates: they pass on the engine, notice their mutations, and say so when they do not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dsv4.errors import Refusal
from lab import gates
from lab.cli.main import main
from lab.gates import GATES, Bench, Finding, Gate, all_gates, run_gate
from lab.mutations import MUTATIONS
from lab.spec_gates import SPEC_GATES
from tests.goldens import golden, golden_folder


@pytest.fixture
def bench() -> Bench:
    return Bench(golden_folder("tiny-s"), "host", {}, golden("tiny-s").ids[:26], 12)


def only(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is that gate of the engine alone."""
    monkeypatch.setattr(gates, "GATES", {gate.name: gate})


def test_every_mutation_is_used_and_every_gate_has_some() -> None:
    used = {name for gate in (*GATES.values(), *SPEC_GATES.values()) for name in gate.red}
    assert set(MUTATIONS) <= used
    assert all(gate.red for gate in GATES.values())


@pytest.mark.parametrize("name", ["stages", "cache-bytes"])
def test_a_gate_holds_and_notices_its_mutations(name: str, bench: Bench) -> None:
    outcome = run_gate(name, bench, red=True)
    assert outcome.passed and not outcome.vacuous
    assert set(outcome.red) == set(GATES[name].red)


@pytest.mark.parametrize("name", ["rows", "state"])
def test_a_gate_of_steps_notices_its_mutations_in_fused_ones(name: str, bench: Bench) -> None:
    outcome = run_gate(name, replace(bench, switches={"fused": "on"}), red=True)
    assert outcome.passed, outcome
    assert not any(found.cannot_matter for found in outcome.red.values())


@pytest.mark.stress
@pytest.mark.parametrize("fused", ["off", "on"])
@pytest.mark.parametrize("name", sorted(all_gates().keys() - {"cache-bytes"}))
def test_every_gate_notices_its_mutations_in_both_forms(
    name: str, fused: str, bench: Bench
) -> None:
    assert run_gate(name, replace(bench, switches={"fused": fused}), red=True).passed


def test_a_gate_that_a_mutation_passes_is_vacuous(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = Gate("blind", "sees nothing", lambda b, m: Finding(True, "fine"), ("missing ape",))
    only(blind, monkeypatch)
    outcome = run_gate("blind", bench, red=True)
    assert outcome.vacuous == ("missing ape",) and not outcome.passed


TWO = ("missing ape", "unsigned index weights")


def test_a_mutation_that_cannot_matter_is_told_and_counts_neither_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def check(bench: Bench, mutation: str | None) -> Finding:
        asked.append(mutation)
        return Finding(mutation is None, "seen" if mutation else "fine")

    only(Gate("seeing", "sees all", check, TWO), monkeypatch)
    outcome = run_gate("seeing", replace(bench, ids=bench.ids[:15]), red=True)
    assert asked == ["missing ape", None] and outcome.passed and outcome.vacuous == ()
    assert outcome.red["missing ape"] == Finding(False, "seen")
    assert "an indexer chooses 3" in outcome.red["unsigned index weights"].cannot_matter
    # As many tokens as the command runs by itself make more blocks than that.
    assert run_gate("seeing", bench, red=True).red["unsigned index weights"].cannot_matter == ""


def test_all_are_the_gates_that_run_without_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(Gate("blind", "sees nothing", lambda b, m: Finding(True, "fine"), ()), monkeypatch)
    told = []
    for words in (["gate", "--backend", "host"], ["gate", "--all", "--backend", "host"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and "blind" in told[0]
    with pytest.raises(SystemExit) as left:
        main(["gate", "blind", "--all", "--backend", "host"])
    assert left.value.code == 2
    assert "--all runs every gate; leave out blind, or --all" in capsys.readouterr().err


def test_the_command_tells_what_cannot_matter_from_what_was_not_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(Gate("blind", "sees nothing", lambda b, m: Finding(True, "fine"), TWO), monkeypatch)
    words = ["gate", "blind", "--tokens", "14", "--red", "--backend", "host"]
    with pytest.raises(SystemExit) as left:
        main(words)
    told = capsys.readouterr().out
    assert left.value.code == 1 and "missing ape: not noticed, so this gate is vacuous" in told
    reason = "14 tokens end 3 blocks, and an indexer chooses 3"
    assert f"red  unsigned index weights: cannot matter here: {reason}\n" in told
    with pytest.raises(SystemExit):
        main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)["gates"][0]
    assert document["red"] == {"missing ape": False, "unsigned index weights": False}
    assert document["cannot_matter"] == {"unsigned index weights": reason}


def test_a_mutation_is_gone_after_its_gate(bench: Bench) -> None:
    from dsv4.engine.tape import Tape

    before = Tape.launch
    assert not GATES["relaunch"].check(bench, "missing ape").holds
    assert Tape.launch is before


def test_an_unknown_gate_is_refused(bench: Bench) -> None:
    with pytest.raises(Refusal, match="relaunch"):
        run_gate("speed", bench, red=False)


def test_the_first_different_place_is_told() -> None:
    a = np.zeros((2, 3), np.float32)
    b = a.copy()
    b[1, 2] = 1.0
    found = gates.same_outputs({"x": a}, {"x": b})
    assert not found.holds and found.detail.startswith("x[1, 2] is 0x00000000 and 0x3f800000")


def test_the_command_prints_verdicts_and_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(golden_folder("tiny-s"))
    with pytest.raises(SystemExit) as left:
        main(["gate", "cache-bytes", "--model", model, "--red", "--backend", "host", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert left.value.code in (0, None)
    assert document["gates"][0]["gate"] == "cache-bytes" and document["gates"][0]["pass"]
    assert document["gates"][0]["red"] == {"a row more": True}
    assert document["gates"][0]["cannot_matter"] == {}

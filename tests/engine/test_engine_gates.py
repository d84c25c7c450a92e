"""Gates: they pass on the engine, notice their mutations, and say so when they do not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dsv4.errors import Refusal
from lab import gates
from lab.cli.main import main
from lab.gates import GATES, Bench, Finding, Gate, run_gate
from lab.mutations import MUTATIONS
from lab.spec_gates import SPEC_GATES
from tests.goldens import golden, golden_folder


@pytest.fixture
def bench() -> Bench:
    return Bench(golden_folder("tiny-s"), "host", {}, golden("tiny-s").ids[:26], 12)


def test_every_mutation_is_used_and_every_gate_has_some() -> None:
    used = {name for gate in (*GATES.values(), *SPEC_GATES.values()) for name in gate.red}
    assert set(MUTATIONS) <= used
    assert all(gate.red for gate in GATES.values())


@pytest.mark.parametrize("name", ["stages", "cache-bytes"])
def test_a_gate_holds_and_notices_its_mutations(name: str, bench: Bench) -> None:
    outcome = run_gate(name, bench, red=True)
    assert outcome.passed and not outcome.vacuous
    assert set(outcome.red) == set(GATES[name].red)


@pytest.mark.stress
@pytest.mark.parametrize("name", sorted(set(GATES) - {"stages", "cache-bytes"}))
def test_every_other_gate_does_too(name: str, bench: Bench) -> None:
    assert run_gate(name, bench, red=True).passed


def test_a_gate_that_a_mutation_passes_is_vacuous(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = Gate("blind", "sees nothing", lambda b, m: Finding(True, "fine"), ("missing ape",))
    monkeypatch.setattr(gates, "GATES", {"blind": blind})
    outcome = run_gate("blind", bench, red=True)
    assert outcome.vacuous == ("missing ape",) and not outcome.passed


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

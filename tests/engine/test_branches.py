"""Branches of a recorded step: nothing in one uses what another writes, and the bytes stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.engine.tape import Entry, Span, Tape, conflicts
from dsv4.runtime.hostdevice import HostDevice
from lab.engine_steps import step_entries
from tests.engine.engines import same_bytes, tiny_engine, tokens

DEVICE = HostDevice()


def stepped(engine: Engine, rows: int, prompt: int = 12) -> DecodeState:
    """A state after a prompt and one greedy step of so many rows, which binds its programs."""
    state = engine.alloc_decode_state(rows=rows)
    engine.prefill_with_cache(tokens(prompt), state)
    decode.step_greedy(engine, state, tokens(rows, seed=1).astype(np.int32))
    return state


def branches(entries: Sequence[Entry]) -> set[int]:
    """The numbers of branches that a step has."""
    return {e.branch for e in entries}


@pytest.mark.parametrize(
    ("layout", "rows"), [("official", 1), ("official", 4), ("nvfp4", 4), ("nextn", 1), ("0731", 4)]
)
def test_branches_of_every_layout_are_independent(layout: str, rows: int) -> None:
    engine = Engine.load(plan_mint("tiny", layout), backend="host", max_seq=40)
    entries = step_entries(engine, stepped(engine, rows), rows)
    assert branches(entries) == {0, 1, 2, 3, 4}
    assert conflicts(entries) == []


@pytest.mark.parametrize(
    "arms",
    [{"dense_input": "fp8"}, {"dots_arm": "f64"}, {"dense_arm": "bf16"}, {"drafter": "dspark"}],
    ids=str,
)
def test_branches_of_every_arm_are_independent(arms: dict[str, str]) -> None:
    engine = tiny_engine(**arms)
    assert conflicts(step_entries(engine, stepped(engine, 1), 1)) == []


def test_the_librarys_products_keep_everything_in_order() -> None:
    engine = tiny_engine(device_gemm="cublas")
    assert branches(step_entries(engine, stepped(engine, 1), 1)) == {0}


def test_recorded_branches_in_another_order_give_the_bytes_of_launches() -> None:
    ids, made = tokens(30), []
    for switches in ({"graphs": "on", "branches": "on"}, {"graphs": "off"}):
        # The host runs recorded branches last first.
        engine = tiny_engine(**switches)
        state = engine.alloc_decode_state()
        engine.prefill_with_cache(ids[:9], state)
        made.append([engine.decode_step(int(t), state) for t in ids[9:]])
    for recorded, launched in zip(*made, strict=True):
        assert same_bytes(recorded, launched)


def entry(branch: int, *spans: tuple[int, int, bool]) -> Entry:
    """A launch of that branch on those addresses."""
    touched = tuple(Span(*s) for s in spans)
    return Entry(f"k{branch}", "", lambda: None, DEVICE, False, 0, branch, touched)


@pytest.mark.parametrize(
    ("second", "meets"),
    [
        ((10, 20, False), False),
        ((9, 12, False), True),
        ((0, 3, True), True),
        ((10, 11, True), False),
    ],
)
def test_a_shared_write_is_a_conflict(second: tuple[int, int, bool], meets: bool) -> None:
    found = conflicts([entry(1, (0, 10, True)), entry(2, second)])
    assert found == (["k1 of branch 1 and k2 of branch 2"] if meets else [])


def test_reads_and_launches_in_order_do_not_conflict() -> None:
    assert conflicts([entry(1, (0, 9, False)), entry(2, (0, 9, False))]) == []
    assert conflicts([entry(1, (0, 9, True)), entry(1, (0, 9, True))]) == []
    assert conflicts([entry(1, (0, 9, True)), entry(0), entry(2, (0, 9, True))]) == []


def test_branches_run_after_what_precedes_them_and_before_what_follows() -> None:
    order: list[Any] = []
    tape = Tape(DEVICE, keep=True)
    for number, branch in enumerate([0, 1, 2, 1, 0, 2, 0]):
        tape.entries.append(
            Entry(str(number), "", lambda n=number: order.append(n), DEVICE, False, 0, branch)
        )
    tape.record(True)
    assert order == [0, 2, 1, 3, 4, 5, 6]

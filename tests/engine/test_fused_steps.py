"""A fused step gives the bytes of single launches, logits and caches, and takes fewer of them."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.engine.tape import conflicts
from lab.engine_steps import step_entries
from lab.minted import model_of
from lab.spec_run import with_drafter
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.engine.watched import sweep

WIDTHS = {"tiny-s": range(1, 7), "0731": (2, 5), "official": (1, 6), "nvfp4": (1, 3, 4)}
# A prompt that wraps the window of 8, ends blocks of 4 and 8, and leaves some open.
PROMPT, ROUNDS = 13, 2


@functools.lru_cache(maxsize=2)
def engine(layout: str, fused: str) -> Engine:
    """An engine of a layout with or without fused launches."""
    if layout == "tiny-s":
        return tiny_engine(fused=fused)
    return Engine.load(plan_mint("tiny", layout), backend="host", max_seq=60, fused=fused)


def stepped(made: Engine, rows: int) -> tuple[list[np.ndarray], DecodeState]:
    """(logits, tokens and caches of some rounds of so many rows, the state after them)."""
    state, ids = made.alloc_decode_state(rows=rows), tokens(PROMPT + ROUNDS * rows, seed=rows)
    made.prefill_with_cache(ids[:PROMPT], state)
    found = []
    for at in range(PROMPT, PROMPT + ROUNDS * rows, rows):
        given = ids[at : at + rows].astype(np.int32)
        found.append(decode.step_logits(made, state, given).copy())
        found.append(decode.step_greedy(made, state, given).copy())
        state.pos += rows
    found += [np.asarray(array).copy() for _, array in made.cache_classes(state)]
    return found, state


@pytest.mark.parametrize(("layout", "rows"), [(k, n) for k, rows in WIDTHS.items() for n in rows])
def test_a_fused_step_gives_the_bytes_of_single_launches(layout: str, rows: int) -> None:
    fused, single = engine(layout, "on"), engine(layout, "off")
    assert fused.arms.fusable and not single.arms.fusable
    for a, b in zip(stepped(fused, rows)[0], stepped(single, rows)[0], strict=True):
        assert same_bytes(a, b)


@pytest.mark.parametrize("layout", ["tiny-s", "nvfp4"])
def test_a_fused_step_takes_fewer_launches_and_its_branches_are_independent(layout: str) -> None:
    counts = {}
    for switch in ("on", "off"):
        made = engine(layout, switch)
        entries = step_entries(made, stepped(made, 1)[1], 1)
        assert conflicts(entries) == []
        counts[switch] = len(entries)
    layers = len(engine(layout, "on").stages[0].layers)
    # An expert sub-block has 3 launches for 10, and 9 with a cast saved; entry and exit have one.
    assert counts["on"] <= counts["off"] - 8 * layers


def test_experts_of_a_fused_layer_take_four_launches() -> None:
    made = engine("tiny-s", "on")
    entries = step_entries(made, stepped(made, 1)[1], 1)
    names = [e.name for e in entries]
    first = names.index("hyper_step_open")
    assert names[first + 1 : first + 5] == [
        "router_gate_hash", "experts_mx_gate_up", "experts_mx_down", "hyper_step_open",
    ]  # fmt: skip
    assert names.count("step_rows") == names.count("hyper_step_entry") == 1
    assert "schedule" not in names and "movement_embed" not in names
    # Coefficients are made beside other work, never by a launch of their own.
    assert "hyper_split" not in names and "hyper_pre_f32" not in names


def test_stages_of_a_fused_step_give_the_bytes_of_one() -> None:
    made = []
    for stages, split in ((1, ""), (3, "1,3")):
        switches = dict(split_at=split) if split else {}
        made.append(stepped(tiny_engine(stages=stages, fused="on", **switches), 3)[0])
    for a, b in zip(*made, strict=True):
        assert same_bytes(a, b)


def test_recorded_fused_steps_give_the_bytes_of_launches() -> None:
    made = [
        stepped(tiny_engine(fused="on", **switches), 2)[0]
        for switches in ({"graphs": "on", "branches": "on"}, {"graphs": "off"})
    ]
    for recorded, launched in zip(*made, strict=True):
        assert same_bytes(recorded, launched)


@pytest.mark.parametrize("layout", ["0731", "nextn"])
def test_every_round_of_a_fused_speculative_run_is_plain(layout: str) -> None:
    where = f"mint:tiny,layout={layout},seed=1,agree=0.7"
    switches = with_drafter(where, {}) | {"fused": "on"}
    made = Engine.load(model_of(where), backend="host", max_seq=60, **switches)
    assert made.arms.fusable
    sweep(made, 17, 12)


def test_arms_without_fused_launches_step_as_before() -> None:
    for switches in ({"quantisers": "off"}, {"dots_arm": "f64"}, {"dense_arm": "bf16"}):
        assert not tiny_engine(fused="on", **switches).arms.fusable
    assert replace(tiny_engine(fused="on").arms, fused="off") == tiny_engine(fused="off").arms

"""Fused launches of a step: fewer of them, and not a byte of logits or caches changes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.speculate import speculate
from dsv4.engine.state import DecodeState
from dsv4.engine.switches import resolve_arms
from dsv4.engine.tape import conflicts
from lab import testing
from lab.engine_steps import step_entries
from tests.engine.engines import same_bytes, tiny_engine, tokens

LAYOUTS = ("0731", "official", "nvfp4")
# Before the first block of 4, at its end, behind the first of 8, and behind more than are chosen.
PROMPTS = (1, 3, 8, 21)
ROWS = (1, 3, 6)


@functools.lru_cache(maxsize=8)
def minted(layout: str, fused: str, backend: str = "host") -> Engine:
    """An engine of minted weights in that layout."""
    plan = plan_mint("tiny", layout)
    return Engine.load(plan, backend=backend, max_seq=40, arms=resolve_arms(fused=fused))


def stepped(engine: Engine, prompt: int, rows: int) -> tuple[np.ndarray, DecodeState]:
    """(logits of some rows together and of two single steps behind them, the state)."""
    ids = tokens(prompt + rows + 2).astype(np.int32)
    state = engine.alloc_decode_state(rows=8)
    engine.prefill_with_cache(ids[:prompt], state)
    made = [decode.step_logits(engine, state, ids[prompt : prompt + rows])]
    state.pos += rows
    made += [engine.decode_step(int(t), state)[None] for t in ids[prompt + rows :]]
    return np.concatenate(made), state


def assert_alike(fused: Engine, plain: Engine, prompt: int, rows: int) -> None:
    a, b = stepped(fused, prompt, rows), stepped(plain, prompt, rows)
    assert same_bytes(a[0], b[0])
    for (name, mine), (_, other) in zip(
        fused.cache_classes(a[1]), plain.cache_classes(b[1]), strict=True
    ):
        assert same_bytes(mine, other), name


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_fused_step_gives_the_bytes_of_the_recorded_model(rows: int, prompt: int) -> None:
    assert_alike(tiny_engine(fused="on"), tiny_engine(), prompt, rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rows", "prompt"), [(2, 6), (4, 21), (5, 3)])
def test_a_fused_step_gives_the_bytes_of_every_layout(layout: str, rows: int, prompt: int) -> None:
    assert_alike(minted(layout, "on"), minted(layout, "off"), prompt, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rows", "prompt"), [(1, 21), (2, 6), (6, 8)])
def test_a_fused_step_on_a_gpu_gives_the_bytes_of_single_launches(
    layout: str, rows: int, prompt: int
) -> None:
    testing.cuda()
    assert_alike(minted(layout, "on", "cuda"), minted(layout, "off", "cuda"), prompt, rows)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_fused_step_takes_fewer_launches_without_conflicts(rows: int) -> None:
    counts = []
    for fused in ("on", "off"):
        engine = tiny_engine(fused=fused)
        _, state = stepped(engine, 12, rows)
        decode.step_greedy(engine, state, tokens(rows).astype(np.int32))
        entries = step_entries(engine, state, rows)
        assert conflicts(entries) == []
        counts.append(len(entries))
    assert counts[0] < counts[1]
    # Heads: norm, rotation, join, rotation back and two roundings less in each of four layers; in
    # two of them the indexer's product, rotation, transform, quantiser and selection.
    assert counts[0] <= counts[1] - 4 * 6 - 2 * 5


@pytest.mark.parametrize("layout", ["0731", "nextn"])
def test_a_speculative_run_drafts_and_keeps_the_same(layout: str) -> None:
    runs = []
    for fused in ("on", "off"):
        plan = plan_mint("tiny", layout, seed=1, agreeing=0.8)
        drafter = "dspark" if layout == "0731" else "off"
        engine = Engine.load(plan, backend="host", max_seq=60, drafter=drafter, fused=fused)
        state = engine.alloc_decode_state(rows=1)
        run = speculate(engine, tokens(13), 20, state=state)
        runs.append((run.tokens, run.accept_digest, engine.cache_classes(state)))
    assert runs[0][:2] == runs[1][:2]
    for (name, mine), (_, other) in zip(runs[0][2], runs[1][2], strict=True):
        assert same_bytes(mine, other), name


def test_arms_without_fused_launches_are_left_as_they_are() -> None:
    engine = tiny_engine(fused="on", dots_arm="f64")
    assert not engine.arms.fusable
    assert_alike(engine, tiny_engine(dots_arm="f64"), 12, 2)

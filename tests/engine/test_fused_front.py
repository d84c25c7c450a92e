"""The fused front of a step: the bytes of the single launches, in fewer launches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dsv4.checkpoint.mint import MintPlan, plan_mint
from dsv4.engine import decode
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from lab.engine_steps import step_entries
from tests.engine.engines import same_bytes, tokens
from tests.engine.speculation import assert_same_classes
from tests.goldens import golden_folder

# A prompt that wraps the window and leaves blocks open; rounds end none, one or two of them.
PROMPT, ROWS = 13, (1, 3, 6, 2, 4, 5, 1, 1)


def model(name: str) -> Path | MintPlan:
    """The committed tiny checkpoint, or a made one of that layout."""
    return golden_folder(name) if name == "tiny-s" else plan_mint("tiny", name)


def loaded(name: str, fused: str, **switches: str) -> Engine:
    """The engine of that model with or without fused launches."""
    return Engine.load(model(name), backend="host", max_seq=60, fused=fused, **switches)


def stepped(engine: Engine, state: DecodeState, count: int) -> list[np.ndarray]:
    """Logits of steps of that many rows behind each other, which all stay."""
    made, ids = [], tokens(60).astype(np.int32)
    for rows in ROWS[:count]:
        made.append(decode.step_logits(engine, state, ids[state.pos : state.pos + rows]))
        state.pos += rows
    return made


def begun(engine: Engine) -> DecodeState:
    """A state for steps of several rows after the prompt."""
    state = engine.alloc_decode_state(rows=6)
    engine.prefill_with_cache(tokens(60)[:PROMPT], state)
    return state


@pytest.mark.parametrize("name", ["tiny-s", "0731", "official", "nvfp4"])
def test_fused_steps_give_the_bytes_of_single_launches(name: str) -> None:
    made = []
    for fused in ("on", "off"):
        engine = loaded(name, fused)
        state = begun(engine)
        made.append((stepped(engine, state, len(ROWS)), dict(engine.cache_classes(state))))
    (fused_logits, fused_caches), (logits, caches) = made
    for a, b in zip(fused_logits, logits, strict=True):
        assert same_bytes(a, b)
    assert_same_classes(fused_caches.items(), caches.items())


@pytest.mark.parametrize("arms", [{"variant": "clamp-only"}, {"graphs": "on"}], ids=str)
def test_fused_steps_give_the_bytes_of_single_launches_on_other_arms(arms: dict[str, str]) -> None:
    engines = [loaded("tiny-s", fused, **arms) for fused in ("on", "off")]
    made = [stepped(engine, begun(engine), 3) for engine in engines]
    for a, b in zip(*made, strict=True):
        assert same_bytes(a, b)


def test_rounds_on_fused_launches_are_single_steps() -> None:
    engine = loaded("tiny-s", "on")
    plain, tried = engine.alloc_decode_state(rows=1), engine.alloc_decode_state(rows=1)
    vstate, ids = engine.alloc_verify_state(6), tokens(60)
    wrong = (ids + 1) % engine.config.vocab_size
    for state in (plain, tried):
        engine.prefill_with_cache(ids[:PROMPT], state)
    for rows, keep in ((4, 2), (6, 1), (3, 3), (6, 5)):
        start = plain.pos
        guess = np.where(np.arange(rows) < keep, ids[start : start + rows], wrong[:rows])
        out = engine.verify_batch(guess, tried, vstate, want_logits=True)
        engine.commit_verify(tried, vstate, keep)
        assert out.logits is not None
        for i in range(keep):
            assert same_bytes(engine.decode_step(int(guess[i]), plain), out.logits[i])
        assert_same_classes(engine.cache_classes(plain), engine.cache_classes(tried))


@pytest.mark.parametrize("rows", [1, 4])
def test_the_front_of_a_layer_takes_two_launches(rows: int) -> None:
    counts = {}
    for fused in ("on", "off"):
        engine = loaded("tiny-s", fused)
        entries = step_entries(engine, begun(engine), rows)
        counts[fused] = Counter(e.name for e in entries)
    layers = len(engine.stages[0].layers)
    for family in ("project", "finish"):
        found = {n: c for n, c in counts["on"].items() if n.startswith(f"{family}_")}
        assert sum(found.values()) == layers
        assert set(found) == {f"{family}_{kind}" for kind in ("window", "blocks", "indexed")}
        assert not any(n.startswith(f"{family}_") for n in counts["off"])
    assert counts["on"]["step_rows"] == 1 and counts["off"]["step_rows"] == 0
    assert counts["on"]["schedule"] == counts["on"]["index_lists_window"] == 0
    assert counts["on"].total() < counts["off"].total()
    assert counts["on"]["compressor_pool_at"] == counts["on"]["movement_scatter"] == 0

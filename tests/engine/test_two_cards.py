"""A model in layers on two cards: the bytes of one card, drafts and streams in turns included."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dsv4.engine.engine import Engine
from lab import testing
from lab.engine_steps import replays
from lab.generation import generate, generate_spec, generate_streams
from lab.minted import model_of
from lab.spec_run import with_drafter
from tests.engine.engines import same_bytes

pytestmark = pytest.mark.gpu2

PROMPT = [5, 9, 1, 200, 17, 3, 77, 4000, 12]
LAYOUTS = ["official", "0731", "nextn"]


@pytest.fixture(autouse=True)
def cards() -> None:
    if testing.cuda().xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices")


@functools.lru_cache(maxsize=2)
def flash(layout: str, *devices: int) -> Engine:
    """Layers of every kind at full width, with the layout's own drafter."""
    speaks = "" if layout == "official" else ",agree=0.8"
    where = f"mint:flash,layout={layout},layers=6,experts=16,seed=3{speaks}"
    switches = {} if layout == "official" else with_drafter(where, {})
    if len(devices) == 2:
        switches |= {"split_at": "3"}  # the drafter's targets are layers 3 to 5
    return Engine.load(model_of(where), devices, backend="cuda", max_seq=300, **switches)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_and_logits_are_those_of_one_card(layout: str) -> None:
    one, two = flash(layout, 0), flash(layout, 0, 1)
    assert (one.cards, two.cards) == (1, 2)
    assert generate(one, PROMPT, 24).tokens == generate(two, PROMPT, 24).tokens
    made = []
    for engine in (one, two):
        state = engine.alloc_decode_state()
        engine.prefill_with_cache(PROMPT, state)
        made.append(np.stack([engine.decode_step(t, state) for t in (7, 8, 9)]))
    assert same_bytes(*made) and np.isfinite(made[0]).all()


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_rounds_give_the_tokens_of_plain_decoding(layout: str) -> None:
    two = flash(layout, 0, 1)
    drafted = generate_spec(two, PROMPT, 40)
    assert drafted.tokens == generate(two, PROMPT, 40).tokens
    assert drafted.run is not None and drafted.run.tokens_per_round > 1.5


def test_streams_in_turns_give_the_tokens_of_one_after_the_other() -> None:
    two = flash("official", 0, 1)
    prompts = [PROMPT, PROMPT[::-1], PROMPT[3:]]
    together = generate_streams(two, prompts, 16).streams
    assert [list(s) for s in together] == [list(generate(two, p, 16).tokens) for p in prompts]


def test_ten_thousand_replays_are_the_same_bytes() -> None:
    found = replays(flash("official", 0, 1), context=150, count=10_000)
    assert (found.count, found.different) == (10_000, 0)

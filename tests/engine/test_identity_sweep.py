"""Long speculative runs, watched after every round: tokens, caches and rings of plain decoding.

Every prompt length around windows and blocks, every depth of a round, every number of right drafts,
on the recorded folders and on made models of three layouts. A run of one small model is in the
plain suite; the sweep is marked `stress` and runs on either backend.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dsv4.engine.engine import Engine
from dsv4.engine.source import config_of, open_source
from dsv4.engine.speculate import open_loop, play_round
from dsv4.speculation.sampling import SpecSampling
from lab import testing
from lab.minted import model_of
from lab.spec_run import with_drafter
from tests.engine.speculation import plain_tokens
from tests.engine.watched import BLOCK, digest, sweep
from tests.goldens import golden_folder

NEW_TOKENS = 300
MADE = {
    "made-0731": "mint:tiny,layout=0731,seed=1,agree=0.7",
    "made-nextn": "mint:tiny,layout=nextn,seed=2,agree=0.7",
    "made-0731-nvfp4": "mint:tiny,layout=0731-nvfp4,seed=3,agree=0.7",
}
MODELS = ("tiny-s", "tiny-a", "tiny-long", "tiny-nextn", *MADE)
BACKENDS = ("host", pytest.param("cuda", marks=pytest.mark.gpu))


@functools.lru_cache(maxsize=4)
def model(name: str, backend: str) -> Engine:
    """An engine with its own drafter and room for the longest run, or for all that fits."""
    if backend == "cuda":
        testing.cuda()
    where = MADE.get(name) or str(golden_folder(name))
    longest = config_of(open_source(model_of(where))).usable_positions
    room = min(longest, 257 + NEW_TOKENS + BLOCK)
    return Engine.load(model_of(where), backend=backend, max_seq=room, **with_drafter(where, {}))


def lengths(engine: Engine) -> list[int]:
    """Prompts around the window, the blocks and the longest coarse block, as far as they fit."""
    window = engine.config.window_size
    wanted = {1, window - 1, window, window + 1, 127, 128, 129, 255, 256, 257}
    return sorted(n for n in wanted if n + 8 + BLOCK < engine.max_seq)


def test_a_short_run_is_plain_after_every_round() -> None:
    sweep(model("made-0731", "host"), 17, 12)


@pytest.mark.stress
@pytest.mark.parametrize("which", range(10))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_round_of_long_runs_is_plain(backend: str, name: str, which: int) -> None:
    engine = model(name, backend)
    if which >= len(lengths(engine)):
        pytest.skip(f"{name} has {engine.max_seq} positions")
    length = lengths(engine)[which]
    sweep(engine, length, min(NEW_TOKENS, engine.max_seq - length - BLOCK))


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_streams_are_those_of_plain_draws(backend: str, name: str, seed: int) -> None:
    engine = model(name, backend)
    count = min(NEW_TOKENS, engine.max_seq - 17 - BLOCK)
    prompt = np.random.default_rng(seed).integers(0, engine.config.vocab_size, 17).tolist()
    how = SpecSampling(
        0.5 + seed / 10, seed=seed, top_p=1.0 - 0.02 * (seed % 5), top_k=seed % 3 * 20
    )
    want, plain = plain_tokens(engine, prompt, count, how)
    loop = open_loop(engine, prompt, count, sampling=how)
    while not loop.done:
        play_round(loop)
    assert tuple(loop.run.tokens) == want
    assert digest(engine.cache_classes(loop.state)) == digest(engine.cache_classes(plain))

"""Models that speculate and runs to hold them against, for tests; loaded once each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.speculation.sampling import SpecSampling
from lab.generation import generate
from tests.engine.engines import same_bytes


@functools.lru_cache(maxsize=8)
def speaking_engine(
    layout: str, share: float = 0.8, seed: int = 1, stages: int = 1, max_seq: int = 80
) -> Engine:
    """A made model that speaks a simple language, with its drafter."""
    plan = plan_mint("tiny", layout, seed=seed, agreeing=share)
    drafter = "dspark" if "0731" in layout else "off"
    split = "2" if stages == 2 else None
    return Engine.load(
        plan, (0,) * stages, backend="host", max_seq=max_seq, drafter=drafter, split_at=split
    )


def plain_tokens(
    engine: Engine, prompt: Sequence[int], count: int, sampling: SpecSampling | None = None
) -> tuple[tuple[int, ...], DecodeState]:
    """What plain decoding emits, and the state it leaves."""
    state = engine.alloc_decode_state(rows=1)
    return generate(engine, list(prompt), count, sampling=sampling, state=state).tokens, state


def assert_same_classes(
    a: Sequence[tuple[str, np.ndarray]], b: Sequence[tuple[str, np.ndarray]]
) -> None:
    """Every class of both holds the same bytes."""
    assert [name for name, _ in a] == [name for name, _ in b]
    for (name, x), (_, y) in zip(a, b, strict=True):
        assert same_bytes(x, y), name

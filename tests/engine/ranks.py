"""Tensor-parallel engines for tests: a made model whose widths two ranks can share."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from dsv4.checkpoint.expected import expected_tensors
from dsv4.checkpoint.mint import MintPlan, plan_mint
from dsv4.engine.engine import Engine
from dsv4.engine.state import DecodeState
from dsv4.runtime.hostdevice import HostDevice
from tests.engine.engines import same_bytes

MAX_SEQ = 160
# A prompt that wraps the window of 16, ends blocks of 4, and leaves one open.
PROMPT = 22


@functools.cache
def plan(layout: str = "official") -> MintPlan:
    """Layers that attend to their window, twice, then to blocks of 4 and of 128."""
    return plan_mint("small", layout, seed=3, layers=4)


@functools.cache
def wide_plan() -> MintPlan:
    """Two of its layers, with experts that four ranks can share."""
    narrow = plan_mint("small", "official", seed=7, layers=2)
    config = replace(narrow.config, moe_inter_dim=512)
    return replace(narrow, config=config, entries=expected_tensors(config, narrow.layout))


@functools.lru_cache(maxsize=24)
def ranked(
    *, layout: str = "official", world: int = 2, mode: str = "run", **switches: str
) -> Engine:
    """The model on so many ranks, each on a host device of its own."""
    devices = tuple(HostDevice(mode=mode, seed=11) for _ in range(world))
    return Engine.load(plan(layout), devices, max_seq=MAX_SEQ, parallel="tensor", **switches)


@functools.lru_cache(maxsize=8)
def alone(*, layout: str = "official", **switches: str) -> Engine:
    """The model on one device."""
    return Engine.load(plan(layout), backend="host", max_seq=MAX_SEQ, **switches)


def ids_of(count: int, seed: int = 0) -> np.ndarray:
    """Token ids of the model's vocabulary."""
    return np.random.default_rng(seed).integers(0, 1024, count).astype(np.int32)


def remembered(engine: Engine, state: DecodeState) -> dict[str, np.ndarray]:
    """What the ranks remember of a sequence, which must be the same bytes on each."""
    first, *others = (dict(engine.cache_classes(state, r)) for r in range(len(state.caches)))
    for other in others:
        assert first.keys() == other.keys()
        for name, array in first.items():
            assert same_bytes(array, other[name]), name
    return first


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Two sequences are remembered alike."""
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert same_bytes(array, b[name]), name

"""Engines for tests: the committed tiny checkpoint under any arms, loaded once each."""

from __future__ import annotations

import functools

import numpy as np

from dsv4.engine.engine import Engine
from tests.goldens import golden_folder

BACKENDS = ("host",)


@functools.lru_cache(maxsize=16)
def tiny_engine(
    *,
    folder: str = "tiny-s",
    stages: int = 1,
    max_seq: int = 60,
    backend: str = "host",
    **switches: str,
) -> Engine:
    """The engine of a recorded folder: layers of ratio 0, 4, 8, 4, a window of 8."""
    return Engine.load(
        golden_folder(folder), (0,) * stages, backend=backend, max_seq=max_seq, **switches
    )


def tokens(count: int, seed: int = 0) -> np.ndarray:
    """Token ids of the tiny vocabulary."""
    return np.random.default_rng(seed).integers(0, 256, count)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two float32 arrays hold the same bits."""
    return a.shape == b.shape and a.astype(np.float32).tobytes() == b.astype(np.float32).tobytes()

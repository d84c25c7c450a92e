"""Counter-based random numbers: Philox 4x32 with ten rounds, and the streams drawn from it."""

from __future__ import annotations

from typing import Final

import numpy as np

HOST, RESIDUAL, CATEGORICAL = 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFF
"""First counter words of the streams that are not a token's."""
LARGEST_BELOW_ONE: Final = np.float32(1.0 - 2.0**-24)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(seed: int, c0: np.ndarray | int, c1: np.ndarray | int) -> tuple[np.ndarray, ...]:
    """The four words of counters (c0, c1, 0, 0) under a 64-bit seed, as uint32 arrays."""
    first, second = np.broadcast_arrays(
        np.atleast_1d(np.asarray(c0, np.uint64)), np.asarray(c1, np.uint64) & _LOW
    )
    x = [first, second, np.zeros_like(first), np.zeros_like(first)]
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        a, b = x[0] * _MULTIPLIERS[0], x[2] * _MULTIPLIERS[1]
        x = [
            (b >> _HALF) ^ x[1] ^ np.uint64(low),
            b & _LOW,
            (a >> _HALF) ^ x[3] ^ np.uint64(high),
            a & _LOW,
        ]
        low, high = (low + _STEPS[0]) & 0xFFFFFFFF, (high + _STEPS[1]) & 0xFFFFFFFF
    return tuple(word.astype(np.uint32) for word in x)


def uniform(words: np.ndarray) -> np.ndarray:
    """Float32 numbers in (0, 1] from 32-bit words; the largest 128 words give exactly 1."""
    return np.asarray((words.astype(np.float32) + np.float32(1)) * np.float32(2.0**-32))


def open_uniform(words: np.ndarray) -> np.ndarray:
    """As `uniform`, but below 1, where a Gumbel value is finite."""
    return np.asarray(np.minimum(uniform(words), LARGEST_BELOW_ONE))


def host_u01(seed: int, n: int) -> float:
    """The n-th uniform number of the host's stream."""
    return float(host_uniforms(seed, n, 1)[0])


def host_uniforms(seed: int, first: int, count: int) -> np.ndarray:
    """That many uniform numbers of the host's stream, from the given one on, float32."""
    counters: np.ndarray = first + np.arange(count, dtype=np.int64)
    return uniform(philox(seed, HOST, counters)[0])


def gumbel_words(seed: int, event: int, count: int) -> np.ndarray:
    """The words of tokens 0..count-1 in one event."""
    words = np.stack(philox(seed, np.arange(-(-count // 4)), event), axis=1)
    return np.asarray(words.reshape(-1)[:count])


def residual_u01(seed: int, event: int) -> float:
    """The uniform number of a residual draw."""
    return float(open_uniform(philox(seed, RESIDUAL, event)[0])[0])

"""Inputs for what follows the products of a layer's front: rows that end a block, and others."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import Fill, alternating, normal, sprinkled, subnormal, uniform, values, wide
from lab.cases.index_lists import whole_numbers

_GAIN = normal(0.1, mean=1.0)


def rounds(first: int, T: int, ring: int, C: int, cap: int) -> dict[str, Fill]:
    """Where T rows from position `first` on lie, as `schedule` says."""
    p = np.arange(first, first + T)
    ends = (p + 1) % C == 0 if C else np.zeros(T, bool)
    lists = {"positions": p, "ring_rows": p % ring}
    if C:
        lists["index_rows"] = np.where(ends & (p // C < cap), p // max(C, 1), -1)
        lists["firsts"] = np.where(ends, p + 1 - C, 0)
    return {name: whole_numbers(*(int(n) for n in a)) for name, a in lists.items()}


_NUMBERS: dict[str, dict[str, Any]] = {
    "cancel": {"latent": alternating(1.0), "kv": alternating(1.0, noise=1e-3)},
    "binades": {"latent": wide(-20, 20), "kv": wide(-20, 20)},
    "subnormal": {"latent": subnormal(), "kv": subnormal()},
    "zeros": {"latent": 0.0, "kv": 0.0},
    "nan": {
        "latent": sprinkled(normal(), [np.nan], 0.01),
        "kv": sprinkled(normal(), [np.nan], 0.01),
    },
    "infinite": {"kv": sprinkled(normal(), [np.inf, -np.inf], 0.01)},
    "clamped": {"clamp_only": 1, "kv": normal(100.0)},
    "places outside": {
        "ring_rows": values(lambda rng, shape: np.resize([-1, 9, 2**31 - 1], shape))
    },
    "positions outside": {"P": 2},
}


def _case(name: str, T: int, Q: int, K: int, R: int, first: int, C: int, **more: Any) -> Case:
    """A ring of 9 rows or 17, and behind it blocks, up to position 48 if N does not say more."""
    ring = 9 + (T > 3) * 8
    cap = int(more["N"]) - ring if "N" in more else max(1, 48 // C) if C else 0
    content: dict[str, Any] = {
        **rounds(first, T, ring, C, cap),
        "ring": ring,
        "eps": 1e-6,
        "table": uniform(-1.0, 1.0),
        "q_gain": _GAIN,
        "kv_gain": _GAIN,
        "N": ring + cap,
        "P": first + T,
        **({"C": C, "gain": _GAIN} if C else {}),
        **more,
    }
    return Case(name, T=T, Q=Q, K=K, R=R, **content)


_FLASH: dict[str, int] = {"Q": 1024, "K": 512, "R": 64}


@cases_for("finish_window")
def finish_window_cases() -> Iterator[Case]:
    """Widths below and above the threads of a block, numbers at the ends of their formats."""
    yield _case("smallest", 1, 1, 66, 2, 0, 0)
    yield _case("tail", 3, 513, 578, 2, 5, 0)
    yield _case("odd pairs", 3, 37, 70, 6, 5, 0)
    for name, content in _NUMBERS.items():
        yield _case(name, 3, 37, 72, 8, 5, 0, **content)
    yield _case("decode", 1, first=2000, C=0, **_FLASH)
    yield _case("verify", 8, first=2000, C=0, **_FLASH)


@cases_for("finish_blocks")
def finish_blocks_cases() -> Iterator[Case]:
    """Rows that end no block, one or several; channels that one thread pools, and four."""

    def case(name: str, T: int, Q: int, K: int, R: int, first: int, C: int, **more: Any) -> Case:
        return _case(name, T, Q, K, R, first, C, S=C + 3, **more)

    yield case("smallest", 1, 1, 66, 2, 0, C=1)
    yield case("no block", 3, 37, 72, 8, 4, C=8)
    yield case("tail", 3, 513, 578, 2, 17, C=20)
    yield case("odd pairs and blocks", 3, 37, 70, 6, 13, C=5)
    yield case("blocks without a place", 3, 37, 72, 8, 77, C=2)
    for name, content in _NUMBERS.items():
        yield case(name, 3, 37, 72, 8, 6, C=8, **content)
    yield case("spread scores", 3, 37, 72, 8, 6, C=8, raw_score=wide(-5, 8))
    yield case("decode", 1, first=127, C=128, **_FLASH, N=40)
    yield case("verify", 8, first=1274, C=128, **_FLASH, N=40)


@cases_for("finish_indexed")
def finish_indexed_cases() -> Iterator[Case]:
    """The same with overlapping blocks, and keys of the indexer."""

    def case(
        name: str, T: int, Q: int, K: int, R: int, first: int, C: int = 4, **more: Any
    ) -> Case:
        content = {"S": 2 * C + 6, "I": 32, "B": 12, "scale": 0.125, "index_gain": _GAIN, **more}
        return _case(name, T, Q, K, R, first, C, **content)

    yield case("smallest", 1, 1, 66, 2, 0, C=1)
    yield case("no block", 3, 37, 72, 8, 4)
    yield case("first block", 3, 513, 578, 2, 1, I=64)
    yield case("seventeen pairs", 3, 37, 72, 8, 17, C=9)
    yield case("odd pairs and keys", 3, 37, 70, 6, 6, B=13)
    yield case("blocks without a place", 3, 37, 72, 8, 77)
    for name, content in _NUMBERS.items():
        yield case(name, 3, 37, 72, 8, 6, **content)
    yield case("spread scores", 3, 37, 72, 8, 6, raw_score=wide(-5, 8), index_score=wide(-5, 8))
    real: dict[str, Any] = dict(I=128, scale=float(np.float32(128**-0.5)), B=600, N=625)
    yield case("decode", 1, first=2003, **_FLASH, **real)
    yield case("verify", 8, first=2000, **_FLASH, **real)

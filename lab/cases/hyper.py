"""Inputs for the hyper-connections: stream counts, gates that saturate, rows that nearly vanish."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import (
    Fill,
    alternating,
    extreme,
    normal,
    sprinkled,
    subnormal,
    uniform,
    values,
    wide,
)

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0], 0.01)
_EPS = 1e-6

# As the model has them: scales near 0.8, biases of half a unit.
_SPLIT: dict[str, Any] = dict(scale=normal(0.3, mean=0.8), base=normal(0.5), eps=_EPS)
_PRE: dict[str, Any] = dict(**_SPLIT, mix_eps=_EPS)

KNOWN_MIX = [0.3, -1.1, 0.7, 2.0, -0.4, 0.9, 1.3, -2.2, 1.0, 0.0, -1.0, 2.0,
             0.5, 0.5, -0.5, 0.0, -2.0, 1.5, 0.25, 1.0, 0.0, -0.75, 3.0, -1.5]  # fmt: skip
KNOWN_SCALE = [0.5, 1.0, 1.5]
KNOWN_BASE = [0.1, -0.2] * 12


def _f32(content: list[float], *shape: int) -> np.ndarray:
    return np.array(content, np.float32).reshape(shape)


def mixing_weights() -> Fill:
    """A weight matrix whose products with unit rows stay near 1."""
    return values(lambda rng, shape: rng.standard_normal(shape) / np.sqrt(shape[1]))


def doubly_stochastic(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Like a balanced comb: columns sum to 1, rows nearly."""
    comb = rng.uniform(0.05, 1.0, shape)
    for _ in range(5):
        comb = comb / comb.sum(axis=2, keepdims=True)
        comb = comb / comb.sum(axis=1, keepdims=True)
    return comb


def _dead_row(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Mixes of which the second source stream loses every target to the others."""
    streams = int(np.sqrt(shape[1] + 1)) - 1
    made = rng.standard_normal(shape)
    made[:, 3 * streams : 4 * streams] -= 40.0
    made[:, 3 * streams] += 80.0
    return made


@cases_for("hyper_norm_scale")
def hyper_norm_scale_cases() -> Iterator[Case]:
    """Rows of all stream counts; in double even extreme squares are finite."""
    yield from _norm_scale_shapes()
    yield Case("extreme", T=3, M=4, D=264, C=24, x=extreme(), mix_eps=_EPS)
    yield Case("huge", T=3, M=4, D=264, C=24, x=wide(60, 120), mix=wide(-20, 100), mix_eps=_EPS)


@cases_for("hyper_norm_scale_f32")
def hyper_norm_scale_f32_cases() -> Iterator[Case]:
    """The same; squares in f32 leave the range beyond 2^63."""
    yield from _norm_scale_shapes()
    yield Case("large", T=3, M=4, D=264, C=24, x=wide(40, 50), mix_eps=_EPS)


def _norm_scale_shapes() -> Iterator[Case]:
    yield Case("smallest", T=1, M=1, D=8, C=1, mix_eps=_EPS)
    yield Case("tail", T=7, M=3, D=264, C=15, mix_eps=_EPS)
    yield Case("eight streams", T=2, M=8, D=1032, C=80, mix_eps=_EPS)
    yield Case("zeros", T=2, M=4, D=64, C=24, x=0.0, mix_eps=_EPS)
    yield Case("eps decides", T=3, M=4, D=64, C=24, x=normal(1e-4), mix_eps=_EPS)
    yield Case("subnormal", T=3, M=4, D=264, C=24, x=subnormal(), mix_eps=1e-38)
    yield Case("special", T=40, M=2, D=64, C=8, x=_SPECIAL, mix=_SPECIAL, mix_eps=_EPS)
    yield Case("head", T=1, M=4, D=4096, C=4, mix_eps=_EPS)
    yield Case("decode", T=1, M=4, D=4096, C=24, mix_eps=_EPS)
    yield Case("verify", T=6, M=4, D=4096, C=24, mix_eps=_EPS)
    yield Case("many rows", T=65536 + 3, M=1, D=8, C=3, mix_eps=_EPS, level="full")
    yield Case("prefill", T=256, M=4, D=4096, C=24, mix_eps=_EPS, level="full")


@cases_for("hyper_split")
def hyper_split_cases() -> Iterator[Case]:
    """Stream counts, gates that saturate, matrices near a permutation, rows that nearly vanish."""
    known: dict[str, Any] = dict(scale=_f32(KNOWN_SCALE, 3), base=_f32(KNOWN_BASE, 24))
    yield Case("one", T=1, M=1, **_SPLIT)
    yield Case("known", T=1, M=4, mix=_f32(KNOWN_MIX, 1, 24), **known, eps=_EPS)
    for streams in (2, 3, 4, 5, 6, 7, 8):
        yield Case("streams", T=7, M=streams, **_SPLIT)
    for iterations in (1, 2, 5):
        yield Case(f"iterations {iterations}", T=3, M=4, iterations=iterations, **_SPLIT)
    yield Case("more rows than a block", T=37, M=4, **_SPLIT)
    yield Case("equal", T=2, M=4, mix=0.5, **{**_SPLIT, "base": -0.25})
    yield Case("near permutation", T=9, M=4, mix=normal(8), **_SPLIT)
    yield Case("dead row", T=9, M=4, mix=values(_dead_row), **_SPLIT)
    yield Case("hundreds", T=9, M=4, mix=uniform(-100, 100), **_SPLIT)
    yield Case("saturated", T=3, M=4, mix=normal(), **{**_SPLIT, "base": uniform(-200, 200)})
    yield Case("larger eps", T=9, M=4, mix=normal(8), **{**_SPLIT, "eps": 1e-2})
    yield Case("subnormal", T=3, M=4, mix=subnormal(), **_SPLIT)
    yield Case("extreme", T=3, M=4, mix=extreme(0.25), **{**_SPLIT, "scale": 1.0})
    yield Case("special", T=40, M=2, mix=_SPECIAL, **_SPLIT)
    yield Case("decode", T=1, M=4, **_SPLIT)
    yield Case("verify", T=6, M=4, **_SPLIT)
    yield Case("prefill", T=2048, M=4, **_SPLIT, level="full")
    yield Case("many rows", T=65536 * 4 + 3, M=1, iterations=1, **_SPLIT, level="full")


@cases_for("hyper_head_gate")
def hyper_head_gate_cases() -> Iterator[Case]:
    """Gates from closed to open; below -88 the plain formula overflows."""
    yield Case("one", T=1, M=1, **_SPLIT)
    yield Case("tail", T=65, M=3, **_SPLIT)
    yield Case("eight streams", T=33, M=8, **_SPLIT)
    yield Case("hundreds", T=100, M=4, mix=uniform(-110, 110), **{**_SPLIT, "scale": 1.0})
    yield Case("no eps", T=100, M=4, mix=uniform(-110, 110), **{**_SPLIT, "scale": 1.0, "eps": 0.0})
    yield Case("subnormal", T=9, M=4, mix=subnormal(), **_SPLIT)
    yield Case("extreme", T=9, M=4, mix=extreme(), **{**_SPLIT, "scale": 1.0})
    yield Case("special", T=40, M=4, mix=_SPECIAL, **_SPLIT)
    yield Case("verify", T=6, M=4, **_SPLIT)
    yield Case("many rows", T=65536 + 3, M=4, **_SPLIT, check=False)


@cases_for("hyper_collapse", "hyper_post")
def hyper_stream_cases() -> Iterator[Case]:
    """Widths around the vector and the block, sums that annihilate."""
    yield Case("one", T=1, M=1, D=1)
    yield Case("tail", T=7, M=3, D=1027)
    yield Case("tail of vectors", T=3, M=4, D=1036)
    for streams in (2, 5, 6, 7, 8):
        yield Case("streams", T=2, M=streams, D=260)
    yield Case("cancel", T=3, M=4, D=515, x=alternating(1.0, noise=1e-7))
    yield Case("binades", T=3, M=4, D=516, x=wide(-60, 60))
    yield Case("subnormal", T=3, M=4, D=515, x=subnormal())
    yield Case("extreme", T=3, M=4, D=515, x=extreme(2.0**-4))
    yield Case("special", T=3, M=4, D=515, x=_SPECIAL)
    yield Case("decode", T=1, M=4, D=4096)
    yield Case("verify", T=6, M=4, D=4096)
    yield Case("many rows", T=65536 + 3, M=4, D=8, check=False)
    yield Case("prefill", T=256, M=4, D=4096, level="full")


@cases_for("hyper_pre", "hyper_pre_f32")
def hyper_pre_cases() -> Iterator[Case]:
    """Raw mixes as large as the streams; stream counts; the model's row."""
    yield Case("smallest", T=1, M=1, D=8, **_PRE)
    yield Case("tail", T=7, M=3, D=264, **_PRE)
    yield Case("two streams", T=3, M=2, D=256, **_PRE)
    yield Case("eight streams", T=2, M=8, D=1032, **_PRE)
    for iterations in (1, 2, 5):
        yield Case(f"iterations {iterations}", T=2, M=4, D=64, iterations=iterations, **_PRE)
    yield Case("larger streams", T=3, M=4, D=264, x=normal(50), mix=normal(50), **_PRE)
    yield Case("zeros", T=2, M=4, D=64, x=0.0, mix=normal(1e-3), **_PRE)
    yield Case("cancel", T=3, M=4, D=264, x=alternating(1.0, noise=1e-7), **_PRE)
    yield Case("special", T=40, M=2, D=64, x=_SPECIAL, **_PRE)
    yield Case("decode", T=1, M=4, D=4096, **_PRE)
    yield Case("verify", T=6, M=4, D=4096, **_PRE)
    yield Case("prefill", T=256, M=4, D=4096, **_PRE, level="full")
    yield Case("many rows", T=65536 + 3, M=1, D=8, iterations=1, **_PRE, level="full")


@cases_for("hyper_post_pre_norm", "hyper_post_pre_norm_f32")
def hyper_post_pre_norm_cases() -> Iterator[Case]:
    """One block a row and many; widths that end inside a part; the model's row."""
    fused: dict[str, Any] = dict(
        **_PRE,
        norm_eps=1e-5,
        fn=mixing_weights(),
        gain=normal(0.1, mean=1.0),
        post=uniform(0.0, 2.0),
        comb=values(doubly_stochastic),
        ticket=0,
    )
    yield Case("smallest", T=1, M=1, D=8, **fused)
    yield Case("tail", T=7, M=3, D=264, **fused)
    yield Case("two streams", T=3, M=2, D=256, **fused)
    yield Case("parts across streams", T=2, M=5, D=104, **fused)
    yield Case("eight streams", T=2, M=8, D=520, **fused)
    for iterations in (1, 2, 5):
        yield Case(f"iterations {iterations}", T=2, M=4, D=64, iterations=iterations, **fused)
    yield Case("larger streams", T=3, M=4, D=264, x=normal(50), z=normal(50), **fused)
    yield Case("cancel", T=3, M=4, D=264, x=alternating(1.0, noise=1e-3), **fused)
    yield Case("special", T=12, M=2, D=264, x=sprinkled(normal(), [np.nan, np.inf], 1e-3), **fused)
    yield Case("decode", T=1, M=4, D=4096, **fused)
    yield Case("verify", T=6, M=4, D=4096, **fused, level="full")
    yield Case("larger model", T=1, M=4, D=7168, **fused, level="full")
    yield Case("many rows", T=65536 + 3, M=1, D=8, **fused, level="full")

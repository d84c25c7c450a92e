"""Inputs for the confidence: sizes around a step, ids outside, sums that annihilate."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import alternating, extreme, ids, normal, one_huge, sprinkled, subnormal, wide
from lab.weights import Checkpoint, bf16_matrix, weights_for

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0], 0.005)


def _stray(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Ids of which every second names no token."""
    chosen = ids("V")(rng, shape, fmt, s)
    outside = rng.choice([-1, -(2**31), 2**31 - 1, int(s["V"])], shape)
    return np.where(np.arange(shape[0]) % 2, outside, chosen).astype(np.int32)


@cases_for("confidence")
def confidence_cases() -> Iterator[Case]:
    """The model's own widths, widths that end inside a step, and every way a sum goes wrong."""
    yield Case("smallest", T=1, V=1, D=8, R=8, ids=ids("V"))
    yield Case("tail", T=7, V=33, D=1032, R=72, ids=ids("V"))
    yield Case("step of both", T=3, V=33, D=200, R=104, ids=ids("V"))
    yield Case("tiny model", T=2, V=512, D=256, R=32, ids=ids("V"))
    yield Case("model", T=5, V=129, D=4096, R=256, ids=ids("V"))
    yield Case("more parts than lanes", T=2, V=9, D=16384, R=264, ids=ids("V"))
    yield Case("stray", T=12, V=33, D=520, R=64, ids=_stray)
    yield Case("cancel", T=5, V=33, D=1024, R=256, ids=ids("V"), x=alternating(1.0), proj=1.0)
    yield Case("one huge", T=5, V=33, D=1032, R=64, ids=ids("V"), x=one_huge(2.0**40))
    yield Case("binades", T=5, V=33, D=1032, R=64, ids=ids("V"), x=wide(-60, 60), w1=wide(-60, 60))
    yield Case("subnormal", T=5, V=33, D=520, R=64, ids=ids("V"), x=subnormal(), w1=subnormal())
    yield Case("extreme", T=5, V=33, D=520, R=64, ids=ids("V"), x=extreme(), proj=normal(1e-3))
    yield Case("special", T=40, V=33, D=264, R=64, ids=ids("V"), x=_SPECIAL, w1=_SPECIAL)
    yield Case("vocabulary", T=5, V=129280, D=4096, R=256, ids=ids("V"), level="full")


@weights_for("confidence")
def _confidence_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    if not name.endswith("confidence_head.proj.weight"):
        return None
    proj = bf16_matrix(checkpoint, name)
    w1 = bf16_matrix(checkpoint, name.replace("confidence_head.proj", "markov_head.markov_w1"))
    if proj is None or w1 is None:
        return None
    V, R = w1.shape
    return dict(T=5, V=V, D=proj.size - R, R=R, w1=w1, proj=proj.reshape(-1), ids=ids("V"))

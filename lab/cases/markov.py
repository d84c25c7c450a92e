"""Inputs for the Markov bias: ids at both ends and outside, logits that the bias cancels."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4.axes import Shape
from dsv4.spec import Format
from lab.cases import Case, cases_for
from lab.cases.fills import alternating, ids, normal, one_huge, sprinkled, subnormal, wide
from lab.weights import Checkpoint, bf16_matrix, weights_for

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0], 0.01)
_OUTSIDE = (-1, -(2**31), 2**31 - 1)


def _stray(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """Ids of which about a third name no token: masked, negative, too large by one."""
    chosen = ids("V")(rng, shape, fmt, s)
    outside = rng.choice([*_OUTSIDE, int(s["V"])], shape)
    return np.where(rng.random(shape) < 0.35, outside, chosen).astype(np.int32)


def _ends(rng: np.random.Generator, shape: tuple[int, ...], fmt: Format, s: Shape) -> np.ndarray:
    """The last token, the first, the last, ..."""
    return np.where(np.arange(shape[0]) % 2, 0, int(s["V"]) - 1).astype(np.int32)


@cases_for("markov_bias", "markov_bias_f32")
def markov_bias_cases() -> Iterator[Case]:
    """Vocabularies around a block of rows, ranks around a step, every count of rows."""
    yield Case("smallest", T=1, V=1, R=8, ids=ids("V"))
    for rows in range(1, 9):
        yield Case("rows", T=rows, V=133, R=264, ids=ids("V"))
    yield Case("tail", T=3, V=1027, R=248, ids=ids("V"))
    yield Case("more than eight rows", T=19, V=67, R=256, ids=ids("V"))
    yield Case("tiny model", T=1, V=512, R=32, ids=ids("V"))
    yield Case("both ends", T=6, V=131, R=256, ids=_ends)
    yield Case("stray", T=24, V=67, R=64, ids=_stray)
    opposed = normal(1e-5, mean=-256.0)  # the bias is exactly 256
    yield Case("cancel", T=3, V=131, R=256, ids=ids("V"), w1=1.0, w2=1.0, logits=opposed)
    yield Case("annihilate", T=3, V=131, R=256, ids=ids("V"), w1=alternating(1.0), w2=1.0)
    yield Case("one huge", T=3, V=131, R=264, ids=ids("V"), w1=one_huge(2.0**40))
    yield Case("binades", T=3, V=131, R=264, ids=ids("V"), w1=wide(-40, 40), w2=wide(-40, 40))
    yield Case("subnormal", T=3, V=131, R=264, ids=ids("V"), w2=subnormal(), logits=subnormal())
    yield Case("underflow", T=2, V=131, R=64, ids=ids("V"), w1=wide(-80, -70), w2=wide(-80, -70))
    yield Case("large logits", T=2, V=131, R=64, ids=ids("V"), logits=wide(100, 127))
    yield Case("special", T=9, V=131, R=64, ids=ids("V"), w1=_SPECIAL, logits=_SPECIAL)
    yield Case("special weights", T=3, V=515, R=64, ids=ids("V"), w2=_SPECIAL)
    yield Case("vocabulary", T=1, V=129280, R=256, ids=ids("V"), level="full")
    yield Case("whole draft", T=5, V=129280, R=256, ids=ids("V"), level="full")


@weights_for("markov_bias", "markov_bias_f32")
def _markov_tables(checkpoint: Checkpoint, name: str) -> dict[str, Any] | None:
    if not name.endswith("markov_w1.weight"):
        return None
    w1 = bf16_matrix(checkpoint, name)
    w2 = bf16_matrix(checkpoint, name.replace("markov_w1", "markov_w2"))
    if w1 is None or w2 is None:
        return None
    return dict(T=5, V=w1.shape[0], R=w1.shape[1], w1=w1, w2=w2, ids=ids("V"))

"""Inputs for the float32 islands: splits of K, sums that annihilate, rows that share a block."""

from collections.abc import Iterator

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import alternating, extreme, normal, one_huge, sprinkled, subnormal, wide

_SPECIAL = sprinkled(normal(), [np.nan, np.inf, -np.inf, -0.0, 0.0], 0.01)


def _shapes() -> Iterator[Case]:
    yield Case("smallest", T=1, N=1, K=8)
    yield Case("tail", T=7, N=33, K=264)
    yield Case("one step", T=3, N=5, K=256)
    yield Case("below a step", T=2, N=131, K=248)
    yield Case("confidence", T=5, N=1, K=4352)
    yield Case("tail of parts", T=2, N=131, K=17 * 256 + 8)
    yield Case("tail of rows", T=1, N=1027, K=520)
    yield Case("more than eight rows", T=19, N=24, K=1024)
    yield Case("tiny mixes", T=1, N=8, K=512)
    yield Case("markov", T=1, N=1024, K=256)
    yield Case("markov of a tiny model", T=3, N=512, K=32)
    yield Case("mixes", T=1, N=24, K=16384)
    yield Case("head mixes", T=6, N=4, K=16384)
    yield Case("cancel", T=3, N=40, K=1024, x=alternating(1.0), w=normal(1e-3, mean=1.0))
    yield Case("one huge", T=3, N=40, K=1032, x=one_huge(2.0**40))
    yield Case("binades", T=3, N=40, K=1032, x=wide(-40, 40), w=wide(-40, 40))
    yield Case("subnormal", T=3, N=40, K=1032, x=subnormal())
    yield Case("underflow", T=3, N=40, K=520, x=wide(-80, -70), w=wide(-80, -70))
    yield Case("special", T=40, N=40, K=264, x=_SPECIAL)
    yield Case("special weights", T=3, N=131, K=264, w=_SPECIAL)
    yield Case("verify", T=6, N=256, K=4096)
    yield Case("gate", T=1, N=256, K=4096, check=True)
    yield Case("verify of mixes", T=8, N=24, K=16384, level="full")
    yield Case("fine compressor", T=1, N=1024, K=4096, level="full")
    yield Case("coarse compressor", T=8, N=512, K=4096, level="full")
    yield Case("vocabulary of the draft", T=1, N=129280, K=256, level="full")
    yield Case("prefill", T=2048, N=256, K=4096, level="full")
    yield Case("many rows", T=65536 * 8 + 3, N=1, K=8, level="full")


@cases_for("island_dots", "island_dots_bf16")
def island_dots_f64_cases() -> Iterator[Case]:
    """Shapes of the model and around the steps; in double even extreme products are finite."""
    yield from _shapes()
    yield Case("extreme", T=3, N=40, K=264, x=extreme(), w=normal(1e-3))


@cases_for("island_dots_f32", "island_dots_bf16_f32")
def island_dots_f32_cases() -> Iterator[Case]:
    """The same; sums in float32 leave the range where double does not."""
    yield from _shapes()
    yield Case("large", T=3, N=40, K=264, x=extreme(2.0**-16), w=normal())

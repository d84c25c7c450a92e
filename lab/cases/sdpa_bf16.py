"""Inputs for grouped-query attention on tensor cores."""

from collections.abc import Iterator
from typing import Any

from lab.cases import Case, cases_for
from lab.cases.fills import alternating, one_huge


@cases_for("sdpa_bf16")
def tensor_core_cases() -> Iterator[Case]:
    """Rows around a block, keys around a tile, ends before the last key, peaked and flat."""
    size: dict[str, Any] = dict(scale=0.25)
    yield Case("smallest", T=1, H=1, N=1, G=1, K=16, last=1, **size)
    yield Case("a block", T=16, H=2, N=64, G=1, K=32, last=64, **size)
    yield Case("one row and one key more", T=17, H=2, N=65, G=2, K=16, last=65, **size)
    yield Case("odd tail", T=7, H=3, N=131, G=3, K=48, last=131, **size)
    yield Case("not to the end", T=5, H=4, N=200, G=2, K=64, last=77, **size)
    yield Case("no keys", T=3, H=1, N=5, G=1, K=16, last=0, **size)
    yield Case("more keys than there are", T=3, H=1, N=5, G=1, K=16, last=9, **size)
    yield Case("peaked", T=4, H=2, N=150, G=1, K=16, last=150, q=one_huge(8.0), **size)
    yield Case("flat", T=4, H=2, N=150, G=1, K=16, last=150, q=0.0, **size)
    yield Case("annihilating values", T=4, H=2, N=150, G=1, K=16, last=150, v=alternating(1.0),
               **size)  # fmt: skip
    yield Case("wide head", T=16, H=2, N=140, G=1, K=128, last=140, scale=0.09)
    yield Case("block", T=16, H=32, N=1024, G=8, K=128, last=1024, scale=0.09, level="full")

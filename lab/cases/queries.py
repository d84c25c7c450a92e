"""Inputs for the queries' products: heads alone in a block and beside rows, both finished."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lab.cases import Case, cases_for
from lab.cases.fills import ids, literal, normal, powers_of_two, sprinkled, wide
from lab.cases.rope import angles

_RELEASE = powers_of_two(-12, -5)


@cases_for("queries_fp8")
def queries_cases() -> Iterator[Case]:
    """Every row count, every width of head, rows of w that end anywhere in a block."""

    def case(name: str, **content: Any) -> Case:
        usual: dict[str, Any] = {
            "R": 16,
            "P": 50,
            "scales": _RELEASE,
            "index_scales": _RELEASE,
            "table": angles(10000.0),
            "positions": ids("P"),
        }
        content.setdefault("scale", float(np.float32(content["D"] ** -0.5)))
        return Case(name, **{**usual, **content})

    yield case("smallest", M=1, N=32, K=16, H=1, D=32)
    for rows in range(1, 9):
        check = rows in (1, 3, 8)
        yield case("rows", M=rows, N=96, K=528, H=3, D=64, check=check)
    yield case("heads only beside", M=2, N=32, K=144, H=5, D=128, R=64)
    yield case("odd pairs", M=3, N=32, K=144, H=3, D=64, R=6, P=51)
    yield case("all lanes turn", M=2, N=160, K=272, H=3, D=32, R=32)
    yield case("blocks without a head", M=3, N=2080, K=16, H=1, D=32)
    yield case("several passes beside a head", M=2, N=9120, K=16, H=7, D=32)
    yield case("outside the table", M=3, N=32, K=272, H=2, D=64, positions=literal([-1, 49, 50]))
    yield case("scales far apart", M=2, N=64, K=272, H=3, D=64, index_scales=literal([2e-9, 3e5]))
    yield case("scale of zero", M=2, N=32, K=144, H=3, D=64, index_scales=0.0)
    yield case("binades", M=3, N=32, K=272, H=3, D=64, x=wide(-30, 30))
    special = sprinkled(normal(), [np.nan], 0.001)
    yield case("special", M=5, N=32, K=272, H=3, D=64, x=special)
    yield case("model's head", M=2, N=512, K=1024, H=2, D=128, R=64)
    model: dict[str, Any] = {"N": 32768, "K": 1024, "H": 64, "D": 128, "R": 64}
    for rows in (1, 4, 8):
        yield case("wq_b", M=rows, level="full", **model)

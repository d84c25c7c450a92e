"""The queries' products: two matrices past one input, and heads that end as scores take them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.formats import encode
from oracle.queries import queries_fp8

Run = Callable[..., SimpleNamespace]

test_contract_queries_fp8 = contract_tests("queries_fp8")
test_speed_queries_fp8 = speed_tests("queries_fp8")

ONE = 0x38  # e4m3


def unturned(M: int, R: int) -> dict[str, np.ndarray]:
    """A table that turns nothing."""
    return {
        "table": np.tile(np.float32([1, 0]), (1, R // 2)),
        "positions": np.zeros(M, np.int32),
    }


def test_a_head_is_transformed_and_rounded_by_hand(run: Run) -> None:
    # Element 0 of the head is 3, the others 0: all of its transform is 3, times the scale 0.5.
    codes = np.zeros((32, 16), np.uint8)
    codes[0, 0] = 0x44  # 3
    x = np.zeros((1, 16), np.uint16)
    x[0, 0] = 0x3F80
    got = run(
        "queries_fp8", M=1, N=32, K=16, H=1, D=32, R=2, P=1, x=x,
        codes=codes, scales=np.float32([[2]]), index_codes=codes, index_scales=np.float32([[1]]),
        **unturned(1, 2), scale=0.5,
    )  # fmt: skip
    assert got.y[0].tolist() == [6.0] + [0.0] * 31
    assert (got.index_q == 1.5).all()


def test_oracle_rounds_to_the_grid_of_its_group() -> None:
    # One row of w for each lane: raw = 1, 2, .. 32; scale 1 and no transform left after two.
    raw = np.zeros((32, 32))
    raw[np.arange(32), np.arange(32)] = 1.0
    codes = encode(raw, "e4m3")
    x = np.arange(1.0, 33.0)[None]
    signs = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(32)] for i in range(32)])
    place = dict(table=np.array([[1.0, 0.0]]), positions=np.array([0]))
    got = queries_fp8(
        codes, np.ones((1, 1)), codes, np.ones((1, 1)), x @ signs / 32, **place, scale=1.0, H=1
    )["index_q"]
    # 32 <= 6 * 2^3: steps of 4 up to 16, of 8 up to 32, of 16 beyond; ties to even codes.
    assert got.value[0, 0, [0, 1, 2, 5, 13, 19, 27, 31]].tolist() == [0, 0, 4, 8, 16, 16, 32, 32]


@pytest.mark.parametrize("rows", [1, 8])
def test_rows_of_w_are_those_of_a_product_of_their_own(rows: int, run: Run) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 0x7F, (352 + 64, 272), np.uint8)
    scales = np.float32(2.0) ** rng.integers(-9, -3, (4, 3)).astype(np.float32)
    x = encode(rng.standard_normal((rows, 272)), "bf16")
    own = dict(codes=codes[:352], scales=scales[:3], x=x)
    index = dict(index_codes=codes[352:], index_scales=scales[3:], **unturned(rows, 4), scale=1.0)
    got = run("queries_fp8", M=rows, N=352, K=272, H=2, D=32, R=4, P=1, **own, **index).y
    alone = run("linear_fp8", M=rows, N=352, K=272, **own).y
    assert got.tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (dict(M=9), "8 rows"),
        (dict(K=1040), "shared memory"),
        (dict(N=48), "32 rows of one matrix"),
        (dict(D=96), "whole passes"),
        (dict(R=34), "end of a head"),
    ],
    ids=str,
)
def test_sizes_that_no_block_can_take_are_refused(
    sizes: dict[str, int], reason: str, run: Run
) -> None:
    usual: dict[str, Any] = dict(M=1, N=32, K=16, H=2, D=32, R=2, P=3)
    with pytest.raises(LaunchError, match=reason):
        run("queries_fp8", **{**usual, **sizes}, scales=1.0, index_scales=1.0, positions=0, scale=1)

"""bf16 products: by hand, in plain loops, in the documented order, and row by row."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.axes import Shape
from dsv4.errors import LaunchError
from dsv4.kernels.linear_bf16 import constants
from lab.testing import contract_tests, speed_tests
from oracle.formats import decode, encode
from oracle.linear_bf16 import linear_bf16

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("linear_bf16")
test_speed = speed_tests("linear_bf16")

# Parts of K: one, two, three, all eight; and rows of w: two a warp, four a warp.
SHAPES = [(5, 16), (37, 1040), (130, 4112), (2051, 528)]


def bf16(*shape: int, seed: int = 0) -> np.ndarray:
    """Bits of values whose products and sums stay exact in float64: multiples of 2^-6 below 2."""
    whole = np.random.default_rng(seed).integers(-127, 128, shape)
    return encode(whole * 2.0**-6, "bf16")


def in_the_documented_order(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """y [M,N] in float32: lanes of 16, steps of 512 dealt to parts, butterfly, parts ascending."""
    (n, k), m = w.shape, x.shape[0]
    parts = constants(Shape(dict(M=m, N=n, K=k)))["SPLIT"]
    steps = -(-k // 512)
    filled = [np.pad(decode(a, "bf16"), ((0, 0), (0, steps * 512 - k))) for a in (w, x)]
    w, x = (a.reshape(-1, steps, 32, 16) for a in filled)
    lanes = np.zeros((parts, m, n, 32), np.float32)
    for step in range(steps):
        part = step % parts
        for i in range(16):
            product = x[:, None, step, :, i] * w[None, :, step, :, i]
            # Exact in float64, so this rounds once, as a fused multiply and add does.
            lanes[part] = (lanes[part] + product).astype(np.float32)
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[..., np.arange(32) ^ distance]
    total = lanes[0, :, :, 0]
    for part in range(1, parts):
        total = total + lanes[part, :, :, 0]
    return total


def test_two_rows_by_hand(run: Run) -> None:
    # 1 + 2 + ... + 16 = 136, and with alternating signs -8; x is one half everywhere, then doubles.
    count = np.arange(1.0, 17.0)
    w = np.stack([count, count * np.tile([1.0, -1.0], 8)])
    x = np.stack([np.full(16, 0.5), np.full(16, 2.0)])
    value, magnitude = linear_bf16(w, x)
    assert value.tolist() == [[68, -4], [272, -16]]
    assert magnitude.tolist() == [[68, 68], [272, 272]]
    got = run("linear_bf16", M=2, N=2, K=16, w=encode(w, "bf16"), x=encode(x, "bf16")).y
    assert got.tolist() == [[68, -4], [272, -16]]


def test_oracle_agrees_with_plain_loops() -> None:
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((4, 7)), rng.standard_normal((3, 7))
    value, magnitude = linear_bf16(w, x)
    for m in range(3):
        for n in range(4):
            terms = [w[n, k] * x[m, k] for k in range(7)]
            assert value[m, n] == pytest.approx(sum(terms), abs=1e-14)
            assert magnitude[m, n] == pytest.approx(sum(abs(t) for t in terms), abs=1e-14)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_bytes_are_those_of_the_documented_order(n: int, k: int, run: Run) -> None:
    w, x = bf16(n, k, seed=1), bf16(2, k, seed=2)
    got = run("linear_bf16", M=2, N=n, K=k, w=w, x=x).y
    assert np.array_equal(got, in_the_documented_order(w, x))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_has_the_same_bytes_alone_and_among_eight(n: int, k: int, run: Run) -> None:
    rng = np.random.default_rng(4)
    w = encode(rng.standard_normal((n, k)), "bf16")
    x = encode(rng.standard_normal((8, k)), "bf16")
    alone = np.concatenate(
        [run("linear_bf16", M=1, N=n, K=k, w=w, x=x[m : m + 1]).y for m in range(8)]
    )
    for rows in range(2, 9):
        got = run("linear_bf16", M=rows, N=n, K=k, w=w, x=x[:rows]).y
        assert got.tobytes() == alone[:rows].tobytes()


def test_the_split_of_k_never_depends_on_the_rows() -> None:
    for n, k in [*SHAPES, (32768, 1024), (4096, 8192), (512, 4096)]:
        splits = {constants(Shape(dict(M=m, N=n, K=k)))["SPLIT"] for m in range(1, 9)}
        assert len(splits) == 1


def test_a_unit_vector_reads_one_column_of_the_weights(run: Run) -> None:
    w = np.random.default_rng(5).integers(0, 0x7F80, (33, 528)).astype(np.uint16)
    for column in (0, 15, 16, 511, 512, 527):
        x = np.zeros((1, 528), np.uint16)
        x[0, column] = 0x3F80
        got = run("linear_bf16", M=1, N=33, K=528, w=w, x=x).y
        assert np.array_equal(got[0], decode(w[:, column], "bf16"))


@pytest.mark.parametrize(
    ("rows", "columns", "reason"), [(9, 16, "8 rows"), (1, 24, "16 consecutive")]
)
def test_sizes_the_walk_cannot_take_are_refused(
    rows: int, columns: int, reason: str, run: Run
) -> None:
    with pytest.raises(LaunchError, match=reason):
        run("linear_bf16", M=rows, N=3, K=columns)

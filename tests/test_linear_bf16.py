"""bf16 products: by hand, in plain loops, in the documented order, and row by row."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.axes import Shape
from dsv4.errors import LaunchError, SpecError
from dsv4.kernels.linear_bf16 import constants
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle.formats import decode, encode
from oracle.linear_bf16 import linear_bf16

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("linear_bf16")
test_contract_grouped = contract_tests("linear_bf16_grouped")
test_speed = speed_tests("linear_bf16")
test_speed_grouped = speed_tests("linear_bf16_grouped")

# Parts of K: one, nine, all sixteen with a thirty-third group, five; K in and out of whole groups.
SHAPES = [(5, 16), (37, 1040), (130, 4112), (2051, 528), (21, 2304)]


def bf16(*shape: int, below: int, seed: int = 0) -> np.ndarray:
    """Bits of whole multiples of 2^-6, none as large as `below` times that."""
    whole = np.random.default_rng(seed).integers(1 - below, below, shape)
    return encode(whole * 2.0**-6, "bf16")


def in_the_documented_order(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """y [M,N] in float32: chained products of 16, groups dealt to parts, parts ascending.

    A product of the tensor core adds exactly and rounds once, which is what it does on the host.
    """
    (n, k), m = w.shape, x.shape[0]
    parts = constants(Shape(dict(M=m, N=n, K=k)))["PARTS"]
    groups = -(-k // 128)
    filled = [np.pad(decode(a, "bf16"), ((0, 0), (0, groups * 128 - k))) for a in (w, x)]
    # Group, chunk of 64, quarter of its lanes, product, and the four elements of each.
    w, x = (a.reshape(-1, groups, 2, 4, 4, 4) for a in filled)
    total = np.zeros((parts, m, n), np.float32)
    for group in range(groups):
        chain = np.zeros((m, n), np.float32)
        for chunk in range(2):
            for j in range(4):
                terms = np.einsum("mqi,nqi->mn", x[:, group, chunk, :, j], w[:, group, chunk, :, j])
                chain = (chain + terms).astype(np.float32)
        total[group % parts] += chain
    y = total[0]
    for part in total[1:]:
        y = y + part
    return y


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
def test_bytes_are_those_of_the_documented_order_where_a_product_rounds_once(
    n: int, k: int
) -> None:
    w, x = bf16(n, k, below=128, seed=1), bf16(2, k, below=128, seed=2)
    got = run_kernel("linear_bf16", HostDevice(), M=2, N=n, K=k, w=w, x=x).y
    assert np.array_equal(got, in_the_documented_order(w, x))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_sums_that_fit_24_bits_are_exact(n: int, k: int, run: Run) -> None:
    # Products are multiples of 2^-12 below 2^-2: 4112 of them stay below 2^11.
    w, x = bf16(n, k, below=32, seed=1), bf16(3, k, below=32, seed=2)
    got = run("linear_bf16", M=3, N=n, K=k, w=w, x=x).y
    assert np.array_equal(got, decode(x, "bf16") @ decode(w, "bf16").T)


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


def test_the_parts_of_k_depend_on_k_alone() -> None:
    for k in (16, 528, 1024, 4096, 8192):
        shapes = [dict(M=m, N=n, K=k) for m in (1, 2, 8) for n in (1, 512, 4096, 32768)]
        assert len({constants(Shape(s))["PARTS"] for s in shapes}) == 1


@pytest.mark.parametrize(("rows", "k"), [(1, 1040), (3, 4112)])
def test_a_row_of_weights_has_the_same_bytes_alone_and_among_thousands(
    rows: int, k: int, run: Run
) -> None:
    rng = np.random.default_rng(6)
    w = encode(rng.standard_normal((8300, k)), "bf16")
    x = encode(rng.standard_normal((rows, k)), "bf16")
    among = run("linear_bf16", M=rows, N=8300, K=k, w=w, x=x).y
    for first, n in [(0, 1), (8299, 1), (777, 40), (3000, 2100)]:
        alone = run("linear_bf16", M=rows, N=n, K=k, w=w[first : first + n], x=x).y
        assert alone.tobytes() == np.ascontiguousarray(among[:, first : first + n]).tobytes()


@pytest.mark.parametrize("group", [8, 24, 64])
def test_a_group_has_the_bytes_of_a_product_of_its_own(group: int, run: Run) -> None:
    rng = np.random.default_rng(7)
    w = encode(rng.standard_normal((4 * group, 272)), "bf16")
    x = encode(rng.standard_normal((3, 4 * 272)), "bf16")
    got = run("linear_bf16_grouped", M=3, N=4 * group, K=272, w=w, x=x, group=group).y
    for g in range(4):
        rows, columns = slice(g * group, (g + 1) * group), slice(g * 272, (g + 1) * 272)
        own = np.ascontiguousarray(x[:, columns])
        alone = run("linear_bf16", M=3, N=group, K=272, w=w[rows], x=own).y
        assert alone.tobytes() == np.ascontiguousarray(got[:, rows]).tobytes()


@pytest.mark.parametrize(("rows", "group", "reason"), [(24, 16, "as many"), (24, 12, "8 rows")])
def test_groups_that_the_walk_cannot_take_are_refused(
    rows: int, group: int, reason: str, run: Run
) -> None:
    with pytest.raises((LaunchError, SpecError), match=reason):
        run("linear_bf16_grouped", M=1, N=rows, K=48, group=group)


def test_a_unit_vector_reads_one_column_of_the_weights(run: Run) -> None:
    w = np.random.default_rng(5).integers(0, 0x7F80, (33, 528)).astype(np.uint16)
    for column in (0, 3, 15, 16, 63, 64, 127, 128, 511, 512, 527):
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

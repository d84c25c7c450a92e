"""The float32 islands: by hand, the order of the sum replayed step by step, rows among others."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.axes import evaluate
from dsv4.errors import LaunchError
from dsv4.kernels.island_dots import PART_STEPS
from lab.testing import contract_tests, speed_tests
from oracle import island_dots as oracle
from oracle.formats import decode, encode
from tests.float_orders import folded, fused

Run = Callable[..., SimpleNamespace]

test_contract_island_dots = contract_tests("island_dots")
test_contract_island_dots_f32 = contract_tests("island_dots_f32")
test_contract_island_dots_bf16 = contract_tests("island_dots_bf16")
test_contract_island_dots_bf16_f32 = contract_tests("island_dots_bf16_f32")
test_speed_island_dots = speed_tests("island_dots")
test_speed_island_dots_f32 = speed_tests("island_dots_f32")
test_speed_island_dots_bf16 = speed_tests("island_dots_bf16")
test_speed_island_dots_bf16_f32 = speed_tests("island_dots_bf16_f32")

F32_WEIGHTS = ("island_dots", "island_dots_f32")
KERNELS = ("island_dots", "island_dots_f32", "island_dots_bf16", "island_dots_bf16_f32")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(kernel: str, *shape: int, seed: int = 1) -> np.ndarray:
    values = normal(*shape, seed=seed)
    return values if kernel in F32_WEIGHTS else encode(values.astype(np.float64), "bf16")


def in_kernel_order(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The float32 sums, one addition after the other, as common/parts.cuh describes them."""
    t, k = x.shape
    n = len(w)
    steps = -(-k // 256)
    part_steps = int(evaluate(PART_STEPS, {"N": n, "K": k}))
    padded = [np.pad(a, ((0, 0), (0, steps * 256 - k))) for a in (x, w)]
    xs, ws = (a.reshape(len(a), steps, 32, 8) for a in padded)
    parts = []
    for first in range(0, steps, part_steps):
        lanes = np.zeros((t, n, 32), np.float32)
        for step in range(first, min(steps, first + part_steps)):
            for i in range(8):
                lanes = fused(xs[:, None, step, :, i], ws[None, :, step, :, i], lanes)
        parts.append(folded(lanes))
    rest = -len(parts) % 32
    dealt = np.stack(parts + [np.zeros((t, n), np.float32)] * rest, -1).reshape(t, n, -1, 32)
    lanes = np.zeros((t, n, 32), np.float32)
    for row in range(dealt.shape[2]):
        lanes = lanes + dealt[:, :, row]
    return folded(lanes)


# ------------------------------------------------------------------ the oracle and the twin


def test_a_product_by_hand() -> None:
    # (1, 2, 3) . (4, 5, 6) = 32; (1, -2, 1) . (4, 5, 6) = 0, with magnitude 4 + 10 + 6.
    x, w = np.array([[1.0, 2, 3], [1, -2, 1]]), np.array([[4.0, 5, 6]])
    assert oracle.island_dots(x, w).value.tolist() == [[32.0], [0.0]]
    assert oracle.island_dots(x, w).magnitude.tolist() == [[32.0], [20.0]]


@pytest.mark.parametrize("name", KERNELS)
def test_oracle_agrees_with_plain_loops(name: str) -> None:
    x, w = normal(3, 5).astype(np.float64), normal(4, 5, seed=1).astype(np.float64)
    value, magnitude = getattr(oracle, name)(x, w)
    for t in range(3):
        for n in range(4):
            assert np.isclose(value[t, n], sum(a * b for a, b in zip(x[t], w[n], strict=True)))
            assert np.isclose(
                magnitude[t, n], sum(abs(a * b) for a, b in zip(x[t], w[n], strict=True))
            )


def test_the_fused_addition_rounds_once() -> None:
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 lies half way between two floats; 2^-60 more decides it.
    a = np.array([1 + 2.0**-12], np.float32)
    for rest, expected in ((2.0**-60, 1 + 2.0**-11 + 2.0**-23), (-(2.0**-60), 1 + 2.0**-11)):
        assert fused(a, a, np.array([rest], np.float32))[0] == np.float32(expected)


# ------------------------------------------------------------------ the kernels


@pytest.mark.parametrize(
    ("tokens", "rows", "width"),
    [(1, 24, 16384), (3, 5, 264), (2, 131, 4360), (1, 1027, 520), (9, 4, 1024), (1, 2048, 1032)],
)
def test_float32_sums_follow_the_written_order_to_the_bit(
    tokens: int, rows: int, width: int, run: Run
) -> None:
    x, w = normal(tokens, width), normal(rows, width, seed=1)
    got = run("island_dots_f32", T=tokens, N=rows, K=width, x=x, w=w).y
    assert encode(got, "f32").tobytes() == in_kernel_order(x, w).tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("rows", "width", "batches"),
    [
        (24, 1024, range(1, 10)),
        (300, 520, (2, 7, 8, 19)),
        (5, 17 * 256, (2, 3, 16)),
        (1100, 64, (3, 8, 17)),
    ],
)
def test_a_row_has_the_bytes_of_a_call_of_its_own(
    kernel: str, rows: int, width: int, batches: Sequence[int], run: Run
) -> None:
    x, w = normal(19, width), weights(kernel, rows, width)
    alone = [
        run(kernel, T=1, N=rows, K=width, x=x[t : t + 1].copy(), w=w).y.tobytes() for t in range(19)
    ]
    for tokens in batches:
        together = run(kernel, T=tokens, N=rows, K=width, x=x[:tokens].copy(), w=w).y
        assert [row.tobytes() for row in together] == alone[:tokens]


@pytest.mark.parametrize("suffix", ["", "_f32"])
@pytest.mark.parametrize("shape", [(24, 16384), (300, 520), (1027, 256)])
def test_bf16_weights_give_the_bytes_of_the_same_weights_in_f32(
    suffix: str, shape: tuple[int, int], run: Run
) -> None:
    rows, width = shape
    stored = weights("island_dots_bf16", rows, width)
    promoted = decode(stored, "bf16").astype(np.float32)
    common = dict(T=3, N=rows, K=width, x=normal(3, width))
    narrow = run(f"island_dots_bf16{suffix}", w=stored, **common).y
    assert narrow.tobytes() == run(f"island_dots{suffix}", w=promoted, **common).y.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_of_weights_does_not_depend_on_its_neighbours(kernel: str, run: Run) -> None:
    # Warps walk several rows of w at once; the same rows in another place give the same sums.
    x, w = normal(2, 520), weights(kernel, 1100, 520)
    moved = np.random.default_rng(3).permutation(1100)
    common = dict(T=2, N=1100, K=520, x=x)
    plain = run(kernel, w=w, **common).y
    assert plain[:, moved].tobytes() == run(kernel, w=w[moved].copy(), **common).y.tobytes()


def test_double_sums_keep_what_float32_sums_lose(run: Run) -> None:
    # 2^30 + 1 - 2^30: the terms meet in one lane.
    x, w = np.zeros((1, 8), np.float32), np.ones((1, 8), np.float32)
    x[0, :3] = 2**30, 1, -(2**30)
    assert run("island_dots", T=1, N=1, K=8, x=x, w=w).y[0, 0] == 1
    assert run("island_dots_f32", T=1, N=1, K=8, x=x, w=w).y[0, 0] == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_stays_in_its_own_row_and_column(kernel: str, run: Run) -> None:
    x, w = normal(3, 264), weights(kernel, 5, 264)
    x[1, 263] = np.nan
    y = run(kernel, T=3, N=5, K=264, x=x, w=w).y
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


def test_a_width_that_breaks_the_vectors_is_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="8 consecutive elements"):
        run("island_dots", T=1, N=1, K=12)

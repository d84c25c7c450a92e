"""The host backend's collectives, shared memory, atomics and intrinsics against NumPy."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.runtime.host import HostModule, build

KERNELS = Path(__file__).parent / "kernels"
LANE = np.arange(32)


@pytest.fixture(params=["run", "shuffle", "check"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def built(name: str, mode: str) -> HostModule:
    return build(KERNELS / f"{name}.cu", defines={}, mode=mode)


def by_lane(x: np.ndarray, source: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x.reshape(-1, 32), np.broadcast_to(source, (x.size // 32, 32)), 1)


def ballot(bits: np.ndarray) -> np.ndarray:
    return (bits.reshape(-1, 32).astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=1)


def test_warp_collectives_follow_the_lane_arithmetic(mode: str) -> None:
    x = np.random.default_rng(1).integers(1, 1000, 96).astype(np.int32)
    out = np.zeros((96, 16), np.int32)
    built("collectives", mode).launch(
        "warp_collectives", grid=(1, 1, 1), block=(48, 2, 1), args=[x, out], seed=1
    )
    sources = [
        np.full(32, 5),
        (LANE + 3) % 32,
        np.where(LANE < 3, LANE, LANE - 3),
        np.where(LANE > 28, LANE, LANE + 3),
        LANE ^ 9,
        LANE // 8 * 8 + 5,
        np.where(LANE % 8 < 3, LANE, LANE - 3),
        np.where(LANE % 8 > 4, LANE, LANE + 3),
        # Beyond its own group of eight a lane may read a lower group, never a higher one.
        np.where(LANE ^ 9 > (LANE | 7), LANE, LANE ^ 9),
    ]
    for column, source in enumerate(sources):
        np.testing.assert_array_equal(out[:, column].reshape(-1, 32), by_lane(x, source))
    warps = x.reshape(-1, 32)
    answers = out.reshape(-1, 32, 16)
    for lane in range(32):
        mine = answers[:, lane]
        np.testing.assert_array_equal(mine[:, 9].astype(np.uint32), ballot(x & 1))
        np.testing.assert_array_equal(mine[:, 10], 1)
        np.testing.assert_array_equal(mine[:, 11], 1)
        same = (warps & 3) == (warps[:, lane : lane + 1] & 3)
        np.testing.assert_array_equal(mine[:, 12].astype(np.uint32), ballot(same))
        np.testing.assert_array_equal(mine[:, 13], warps.sum(axis=1))
        np.testing.assert_array_equal(mine[:, 14], warps.max(axis=1))
        np.testing.assert_array_equal(mine[:, 15], np.bitwise_xor.reduce(warps, axis=1))


def test_lanes_outside_a_mask_take_no_part(mode: str) -> None:
    x = np.random.default_rng(2).integers(1, 1000, 64).astype(np.int32)
    out = np.zeros((64, 3), np.int32)
    built("collectives", mode).launch(
        "masked_collectives", grid=(1, 1, 1), block=(64, 1, 1), args=[x, out], seed=2
    )
    low = np.tile(LANE < 12, 2)
    swapped = by_lane(x, LANE ^ 1).ravel()
    np.testing.assert_array_equal(out[:, 0], np.where(low, swapped, -swapped))
    votes = np.where(low, ballot((x & 1) * low).repeat(32), ballot((x & 1) * ~low).repeat(32))
    np.testing.assert_array_equal(out[:, 1].astype(np.uint32), votes)
    np.testing.assert_array_equal(out[:, 2], x.reshape(2, 32).min(axis=1).repeat(32))


def test_block_collectives_see_every_thread(mode: str) -> None:
    x = (np.arange(70) % 50).astype(np.int32)
    out = np.zeros((70, 3), np.int32)
    module = built("collectives", mode)
    module.launch("block_collectives", grid=(1, 1, 1), block=(70, 1, 1), args=[x, out])
    np.testing.assert_array_equal(out, [[0, 1, 35]] * 70)
    x[69] = 77
    module.launch("block_collectives", grid=(1, 1, 1), block=(70, 1, 1), args=[x, out])
    np.testing.assert_array_equal(out, [[1, 0, 35]] * 70)


def test_shuffles_carry_four_and_eight_byte_values(mode: str) -> None:
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal(32).astype(np.float32),
        rng.standard_normal(32),
        rng.integers(-(2**62), 2**62, 32),
        rng.integers(2**62, 2**63, 32).astype(np.uint64),
        rng.integers(0, 2**32, 32).astype(np.uint32),
    ]
    args = [array.copy() for array in arrays]
    built("collectives", mode).launch("shuffle_types", grid=(1, 1, 1), block=(32, 1, 1), args=args)
    for before, after in zip(arrays, args, strict=True):
        np.testing.assert_array_equal(after, before[LANE ^ 1])


def test_three_dimensional_indices_count_x_first(mode: str) -> None:
    out = np.zeros((2, 3, 4, 2, 3, 5, 6), np.int32)
    built("collectives", mode).launch("indices", grid=(4, 3, 2), block=(5, 3, 2), args=[out])
    axes = np.indices(out.shape[:-1])
    np.testing.assert_array_equal(out, np.stack([axes[i] for i in (2, 1, 0, 5, 4, 3)], axis=-1))


def test_every_kind_of_shared_memory_holds_its_values(mode: str) -> None:
    x = np.arange(64, dtype=np.int32) * 3 + 1
    out = np.zeros((64, 6), np.int32)
    built("shared_kinds", mode).launch(
        "shared_kinds", grid=(1, 1, 1), block=(64, 1, 1), shared_bytes=1024, args=[x, out]
    )
    back = x[::-1]
    square = x.reshape(8, 8).T.ravel()
    np.testing.assert_array_equal(out, np.stack([back, square, back + 1, back + 2, back, back], 1))


def test_shuffle_mode_lets_a_warp_run_far_ahead_of_another() -> None:
    # Threads that are picked at random alone keep pace with each other: no block would say so.
    ahead = np.zeros(64, np.int32)
    built("collectives", "shuffle").launch(
        "far_ahead", grid=(64, 1, 1), block=(64, 1, 1), args=[ahead], seed=1
    )
    assert 0 < ahead.sum() < 64


def test_shuffle_mode_poisons_shared_memory_before_every_block() -> None:
    out = np.zeros((3, 2), np.uint32)
    built("shared_kinds", "shuffle").launch(
        "leftovers", grid=(3, 1, 1), block=(1, 1, 1), shared_bytes=16, args=[out]
    )
    np.testing.assert_array_equal(out, 0xFFFFFFFF)


def test_atomics_lose_no_update_with_two_workers() -> None:
    module = built("atomics", "run")
    x = (np.arange(40 * 256) % 1000).astype(np.int32)
    i = np.array([0, 0, -5, 5, -1, 0, 0], np.int32)
    u = np.array([0xFFFFFFFF, 0, 0, 0, 0], np.uint32)
    wide = np.zeros(2, np.uint64)
    module.launch(
        "integer_atomics", grid=(40, 1, 1), block=(256, 1, 1), args=[x, i, u, wide], workers=2
    )
    total = int(x.sum())
    assert i[:4].tolist() == [total, -total, 999, 0]
    assert i[4] == i[5] and 0 <= i[4] < 1000 and i[6] == 33
    # Inc counts 0..6 and wraps; Dec goes 0, 6, 5, ... 0 and wraps.
    assert u.tolist() == [0, 0xFFFFFFFF, np.bitwise_xor.reduce(x), x.size % 7, -x.size % 7]
    assert wide.tolist() == [total << 32, 999 << 32]


def test_float_atomics_add_in_one_order_with_one_worker() -> None:
    module = built("atomics", "run")
    x = np.random.default_rng(4).standard_normal(20 * 128).astype(np.float32)
    total, wide = np.zeros(1, np.float32), np.zeros(1)
    module.launch(
        "float_atomics", grid=(20, 1, 1), block=(128, 1, 1), args=[x, total, wide], workers=1
    )
    assert total[0] == np.cumsum(x, dtype=np.float32)[-1]
    assert wide[0] == np.cumsum(x, dtype=np.float64)[-1]


def test_float_intrinsics_round_as_ieee_says() -> None:
    rng = np.random.default_rng(5)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 1.0, 3e38], np.float32)
    a = np.concatenate([np.repeat(special, 9), rng.standard_normal(200).astype(np.float32)])
    b = np.concatenate([np.tile(special, 9), rng.standard_normal(200).astype(np.float32)])
    out = np.zeros((a.size, 10), np.float32)
    built("intrinsics", "run").launch(
        "float_intrinsics", grid=(3, 1, 1), block=(128, 1, 1), args=[a, b, out, np.int32(a.size)]
    )
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b
        answers = [
            np.fmax(a, b),
            np.fmin(a, b),
            a + b,
            a * b,
            a / b,
            np.sqrt(a),
            (1 / np.sqrt(a.astype(np.float64))).astype(np.float32),
            None,
            a * b + np.float32(1),
            np.fmax(a, b),
        ]
    for column, answer in enumerate(answers):
        if answer is not None:
            np.testing.assert_array_equal(out[:, column], answer)
    # The fused product rounds once: float64 holds the product exactly, the sum nearly so.
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out[:, 7], (product + 1).astype(np.float32))
    assert (out[81:, 7] != out[81:, 8]).any()
    zeros = np.flatnonzero((a == 0) & (b == 0))
    both_negative = np.signbit(a[zeros]) & np.signbit(b[zeros])
    any_negative = np.signbit(a[zeros]) | np.signbit(b[zeros])
    np.testing.assert_array_equal(np.signbit(out[zeros, 0]), both_negative)
    np.testing.assert_array_equal(np.signbit(out[zeros, 1]), any_negative)


def test_float_to_integer_saturates_like_the_device() -> None:
    a = np.array([2.5, -2.5, 3.5, 1e10, -1e10, np.nan, np.inf, -np.inf, -0.4], np.float32)
    out, wide = np.zeros((a.size, 6), np.int32), np.zeros(a.size, np.int64)
    built("intrinsics", "run").launch(
        "to_integer", grid=(1, 1, 1), block=(32, 1, 1), args=[a, out, wide, np.int32(a.size)]
    )
    top, low = 2**31 - 1, -(2**31)
    assert out[:, 0].tolist() == [2, -2, 4, top, low, 0, top, low, 0]
    assert out[:, 1].tolist() == [2, -2, 3, top, low, 0, top, low, 0]
    assert out[:, 2].tolist() == [2, -3, 3, top, low, 0, top, low, -1]
    assert out[:, 3].tolist() == [3, -2, 4, top, low, 0, top, low, 0]
    unsigned = out[:, 4].astype(np.uint32)
    assert unsigned.tolist() == [2, 0, 4, 2**32 - 1, 0, 0, 2**32 - 1, 0, 0]
    assert out[:, 5].tolist() == out[:, 1].tolist()
    assert wide.tolist() == [2, -2, 3, 10**10, -(10**10), -(2**63), 2**63 - 1, -(2**63), 0]


def test_integer_intrinsics_match_their_definitions() -> None:
    rng = np.random.default_rng(6)
    a = np.concatenate([[0, 1, 2**31, 2**32 - 1], rng.integers(0, 2**32, 60)]).astype(np.uint32)
    b = rng.integers(0, 2**32, 64).astype(np.uint32)
    out = np.zeros((64, 8), np.uint32)
    built("intrinsics", "run").launch(
        "integer_intrinsics", grid=(1, 1, 1), block=(64, 1, 1), args=[a, b, out, np.int32(64)]
    )
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        eight = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        # Selector 0x9072: byte 2, byte 7, byte 0, then the sign of byte 1 spread out.
        picked = bytes([eight[2], eight[7], eight[0], 255 * (eight[1] >> 7)])
        assert out[i].tolist() == [
            x.bit_count(),
            32 - x.bit_length(),
            (x & -x).bit_length(),
            int(f"{x:032b}"[::-1], 2),
            int.from_bytes(picked, "little"),
            (y << 7 | x >> 25) & 0xFFFFFFFF,
            x * y >> 32,
            min(x, y),
        ]


def test_constants_are_the_device_s_bits() -> None:
    f, d = np.zeros(3, np.float32), np.zeros(2)
    built("intrinsics", "run").launch("constants", grid=(1, 1, 1), block=(1, 1, 1), args=[f, d])
    assert f.view(np.uint32).tolist() == [0x7F800000, 0x7FFFFFFF, 0x7F7FFFFF]
    assert d.view(np.uint64).tolist() == [0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF]

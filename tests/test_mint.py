"""Contents of made checkpoints: the published generator, exact counts, places that fit together."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.formats import decode, encode
from oracle.mint import mint_e4m3, mint_f32, mint_ue8m0, philox

Run = Callable[..., SimpleNamespace]
KEY = 0x13198A2E03707344
FILLS = ("mint_e2m1x2", "mint_e4m3", "mint_ue8m0", "mint_e4m3_scales", "mint_bf16", "mint_f32")
SCALARS = {
    "mint_ue8m0": dict(base=118, threshold=5000),
    "mint_e4m3_scales": dict(base=118, threshold=5000, second=112),
    "mint_bf16": dict(mean=0.5, scale=1e-5),
    "mint_f32": dict(mean=0.5, scale=1e-5),
}

test_e2m1x2 = contract_tests("mint_e2m1x2")
test_e4m3 = contract_tests("mint_e4m3")
test_ue8m0 = contract_tests("mint_ue8m0")
test_e4m3_scales = contract_tests("mint_e4m3_scales")
test_bf16 = contract_tests("mint_bf16")
test_f32 = contract_tests("mint_f32")
test_expert_ids = contract_tests("mint_expert_ids")
test_speed_of_codes = speed_tests("mint_e2m1x2")
test_speed_of_bytes = speed_tests("mint_e4m3")
test_speed_of_scales = speed_tests("mint_ue8m0")
test_speed_of_second_scales = speed_tests("mint_e4m3_scales")
test_speed_of_normals = speed_tests("mint_bf16")
test_speed_of_wide_normals = speed_tests("mint_f32")
test_speed_of_tables = speed_tests("mint_expert_ids")


def fill(run: Run, kernel: str, count: int, start: int = 0, key: int = KEY) -> np.ndarray:
    """One tensor's content."""
    keys = np.array([key], np.int64)
    return run(kernel, E=1, N=count, keys=keys, start=start, **SCALARS.get(kernel, {})).y[0]


def test_the_generator_gives_the_published_words() -> None:
    # The known answers that come with Random123, for a counter whose upper half is zero.
    words = philox(np.array([0]), 0)[0]
    assert [f"{w:08x}" for w in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def philox_in_plain_integers(counter: int, key: int) -> list[int]:
    """The twin in Python's own integers: two multiplications and a swap, ten times."""
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


@pytest.mark.parametrize("counter", [0, 1, 2**32 - 1, 2**32, 2**63 + 12345])
@pytest.mark.parametrize("key", [0, KEY, 2**64 - 1])
def test_the_generator_agrees_with_plain_integers(counter: int, key: int) -> None:
    words = philox(np.array([counter], np.uint64), key)[0]
    assert words.tolist() == philox_in_plain_integers(counter, key)


def test_elements_come_from_the_low_bytes_up(run: Run) -> None:
    # e1 69 c5 8d is the second word of the zero key's first block.
    assert fill(run, "mint_e2m1x2", 16, key=0)[4:8].tolist() == [0x8D, 0xC5, 0x69, 0xE1]
    # d5 + e8 + 27 + 66 = 213 + 232 + 39 + 102 = 586 is 76 above the mean: a tie, which goes to 80.
    assert decode(fill(run, "mint_e4m3", 4, key=0), "e4m3")[0] == 80.0


@pytest.mark.parametrize("kernel", FILLS)
def test_a_part_made_alone_has_the_bytes_it_has_in_the_whole(kernel: str, run: Run) -> None:
    whole = fill(run, kernel, 2000)
    assert np.array_equal(fill(run, kernel, 1984, start=16), whole[16:])
    assert np.array_equal(fill(run, kernel, 5, start=1024), whole[1024:1029])


@pytest.mark.parametrize("kernel", FILLS)
def test_another_key_gives_another_content(kernel: str, run: Run) -> None:
    assert (fill(run, kernel, 4096) != fill(run, kernel, 4096, key=KEY + 1)).mean() > 0.3


@pytest.mark.parametrize("kernel", FILLS)
def test_tensors_made_together_have_the_bytes_they_have_alone(kernel: str, run: Run) -> None:
    keys = np.array([KEY, 7, -5], np.int64)
    rows = run(kernel, E=3, N=515, keys=keys, start=0, **SCALARS.get(kernel, {})).y
    assert all(
        np.array_equal(row, fill(run, kernel, 515, key=key))
        for row, key in zip(rows, keys, strict=True)
    )


def test_rows_of_ids_made_alone_are_rows_of_the_table(run: Run) -> None:
    table = run("mint_expert_ids", V=50, A=6, key=KEY, start=0, experts=16).y
    part = run("mint_expert_ids", V=7, A=6, key=KEY, start=20, experts=16).y
    assert np.array_equal(part, table[20:27])


def test_ids_of_a_row_are_distinct_and_every_expert_is_met_equally_often(run: Run) -> None:
    rows, picked, experts = 6000, 3, 8
    ids = run("mint_expert_ids", V=rows, A=picked, key=KEY, start=0, experts=experts).y
    assert all(len(set(row)) == picked for row in ids.tolist())
    counts = np.bincount(ids.reshape(-1), minlength=experts)
    share = picked / experts
    deviation = np.sqrt(rows * share * (1 - share))
    assert np.abs(counts - rows * share).max() < 5 * deviation


def test_every_pair_of_two_among_three_is_equally_likely(run: Run) -> None:
    ids = run("mint_expert_ids", V=9000, A=2, key=KEY, start=0, experts=3).y
    pairs = np.bincount(3 - ids.sum(axis=1), minlength=3)
    assert np.abs(pairs - 3000).max() < 5 * np.sqrt(2000)


def test_codes_are_uniform_and_their_neighbours_independent(run: Run) -> None:
    nibbles = fill(run, "mint_e2m1x2", 1 << 16)
    joint = np.bincount(nibbles, minlength=256)
    assert np.abs(joint - 256).max() < 6 * np.sqrt(256)


def test_scales_have_the_promised_mean_square() -> None:
    n, threshold = 200_000, 9000
    powers = np.ldexp(1.0, mint_ue8m0(n, [KEY], 0, 120, threshold).astype(np.int64) - 120)
    promised = 25 / 16 * (1 + 3 * threshold / 2**14)
    # The largest term is 16, so the mean of n terms cannot stray further than this by chance.
    assert abs((powers**2).mean() - promised) < 5 * 16 / np.sqrt(n)


def test_half_group_scales_decode_to_the_scales_of_whole_groups(run: Run) -> None:
    whole = np.ldexp(1.0, fill(run, "mint_ue8m0", 500).astype(np.int64) - 127)
    halves = decode(fill(run, "mint_e4m3_scales", 1000), "e4m3") * 2.0 ** (112 - 127)
    assert np.array_equal(halves, whole.repeat(2))


def test_normals_have_their_mean_and_deviation() -> None:
    n, deviation = 100_000, np.sqrt((2**32 - 1) / 3)
    x = mint_f32(n, [KEY], 0, 0.25, float(1 / deviation))
    assert abs(x.mean() - 0.25) < 5 / np.sqrt(n)
    assert abs(x.std() - 1.0) < 5 / np.sqrt(n)
    assert np.abs(x - 0.25).max() <= 131070 / deviation + 1e-6


def test_fp8_codes_hold_no_nan_and_sum_to_nothing() -> None:
    codes = mint_e4m3(100_000, [KEY], 0)
    assert not ((codes & 0x7F) == 0x7F).any()
    assert abs(decode(codes, "e4m3").mean()) < 5 * 148 / np.sqrt(codes.size)


def test_bf16_content_is_the_f32_content_rounded_once(run: Run) -> None:
    assert np.array_equal(
        encode(fill(run, "mint_bf16", 999), "bf16"), encode(fill(run, "mint_f32", 999), "bf16")
    )


@pytest.mark.parametrize("kernel", FILLS)
def test_a_start_inside_a_block_is_refused(kernel: str, run: Run) -> None:
    with pytest.raises(LaunchError, match="start"):
        fill(run, kernel, 8, start=1)


def test_more_distinct_ids_than_experts_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="distinct"):
        run("mint_expert_ids", V=2, A=5, key=KEY, start=0, experts=4)

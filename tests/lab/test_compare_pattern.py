"""The namer of patterns: planted layouts must give the sentence a person would say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.compare.pair import pair
from lab.compare.pattern import axis_patterns, sentences
from lab.compare.resemblance import resemblances
from oracle.formats import encode

SHAPE, AXES = (8, 512), ("token", "dim")


def wrong_at(*where, shape=SHAPE):
    mask = np.zeros(shape, bool)
    mask[where] = True
    return mask


def said(mask, axes=AXES, **tile):
    return "; ".join(sentences(mask, axes, tile))


def test_nothing_wrong_says_nothing():
    assert sentences(np.zeros(SHAPE, bool), AXES, {}) == ()
    assert axis_patterns(np.zeros(SHAPE, bool), AXES, {}) == ()


def test_the_tail_of_every_row_is_named():
    text = said(wrong_at(slice(None), slice(448, None)))
    assert text == (
        "all 512 mismatches have dim >= 448 (the last 64-wide block): every element there"
    )


def test_the_head_and_a_middle_block_are_named():
    assert "dim < 64" in said(wrong_at(slice(None), slice(0, 64)))
    text = said(wrong_at(slice(None), slice(128, 192)))
    assert "dim in [128,192) (the 64-wide block 2)" in text


def test_a_single_row_is_named_with_its_end():
    assert said(wrong_at(7)).startswith("all 512 mismatches have token=7 (the last)")
    assert "token=0 (the first)" in said(wrong_at(0))
    assert "token=3:" in said(wrong_at(3))
    assert "every element there" in said(wrong_at(3))


def test_a_single_column_is_named():
    assert "dim=17" in said(wrong_at(slice(None), 17))


def test_a_block_of_the_last_row_is_named_on_both_axes():
    text = said(wrong_at(7, slice(384, 480)))
    assert "token=7 (the last) and dim in [384,480) (the last 128-wide block)" in text
    assert "96 mismatches" in text


def test_the_last_partial_tile_is_named_when_the_tile_is_known():
    mask = wrong_at(slice(None), slice(384, None), shape=(8, 500))
    assert "dim >= 384 (the last tile, a partial one of 116)" in said(mask, dim=128)
    inner = wrong_at(slice(None), slice(256, 384), shape=(8, 500))
    assert "dim in [256,384) (tile 2 of 4)" in said(inner, dim=128)


def test_most_in_the_last_tile_is_said_with_a_share():
    mask = wrong_at(slice(None), slice(384, None))
    mask[::2, ::7] = True
    text = said(mask, dim=128)
    assert "of the mismatches are in the last tile of dim, from 384" in text


@pytest.mark.parametrize("modulus", [2, 4, 8, 16, 32, 64, 128])
def test_a_residue_is_named_with_its_modulus(modulus):
    mask = wrong_at(slice(None), slice(1, None, modulus), shape=(64, 2048))
    assert f"dim % {modulus} == 1" in said(mask)


@pytest.mark.parametrize("half", [2, 16, 64])
def test_the_upper_half_of_every_block_is_named(half):
    mask = np.zeros((4, 1024), bool)
    mask[:, np.arange(1024) % (2 * half) >= half] = True
    assert f"dim % {2 * half} >= {half}" in said(mask)


def test_most_mismatches_on_a_residue_are_said_with_a_share():
    rng = np.random.default_rng(0)
    mask = np.zeros((64, 1024), bool)
    mask[:, 5::32] = True
    mask[rng.integers(0, 64, 60), rng.integers(0, 1024, 60)] = True
    assert "have dim % 32 == 5" in said(mask)
    assert "97%" in said(mask)


def test_one_row_with_most_mismatches_is_said():
    rng = np.random.default_rng(0)
    mask = np.zeros(SHAPE, bool)
    mask[2, ::2] = True
    mask[rng.integers(0, 8, 6), rng.integers(0, 512, 6)] = True
    assert "of the mismatches have token=2" in said(mask)


def test_a_contiguous_run_across_rows_is_named():
    mask = np.zeros(SHAPE, bool)
    mask.reshape(-1)[1000:1100] = True
    assert "one contiguous run of 100 elements from flat index 1000" in said(mask)


def test_random_places_have_no_pattern_and_all_is_all():
    rng = np.random.default_rng(5)
    assert said(rng.random((64, 512)) < 0.01).endswith("no pattern by position")
    assert said(np.ones(SHAPE, bool)) == "all 4096 elements are wrong"
    assert said(wrong_at(3, 5)) == "a single element is wrong"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.002, 0.5))
def test_chance_rarely_looks_like_a_pattern(seed, share):
    mask = np.random.default_rng(seed).random((32, 256)) < share
    if mask.sum() < 3:
        return
    # Ranges and residues need odds of a thousand to one; a run or a single row cannot be chance.
    text = said(mask)
    assert "every element there" not in text and "%  2" not in text
    assert "contiguous run" not in text


def test_a_mask_of_one_dimension_is_not_said_twice():
    mask = np.zeros(1000, bool)
    mask[768:] = True
    assert sentences(mask, ("N",), {"N": 256}) == (
        "all 232 mismatches have N >= 768 (the last tile, a partial one of 232):"
        " every element there",
    )


def test_axis_patterns_hold_the_numbers_behind_the_words():
    token, dim = axis_patterns(wrong_at(7, slice(384, 480)), AXES, {"dim": 128})
    assert (token.low, token.high, token.distinct) == (7, 8, 1)
    assert (dim.low, dim.high, dim.distinct, dim.last_tile) == (384, 480, 96, 1.0)
    assert dim.modulus[2] == (0, 0.5)


# ---- values ----------------------------------------------------------------------------------


REF = np.random.default_rng(9).standard_normal((6, 64)) + 3.0


def resembles(got, fmt="bf16", ref=REF):
    both = pair(encode(got, fmt), ref, fmt, ("T", "D"))
    return "; ".join(resemblances(both, both.differ))


def test_a_constant_is_named_with_its_bits():
    got = REF.copy()
    got[2] = 0.0
    assert resembles(got) == "every wrong element is 0x0000 (0)"


def test_poison_is_recognised():
    bits = encode(REF, "bf16")
    bits[1, :7] = 0xFFFF
    both = pair(bits, REF, "bf16", ("T", "D"))
    assert "poison" in resemblances(both, both.differ)[0]


def test_a_scale_off_by_one_exponent_is_named():
    got = REF.copy()
    got[:, 32:] *= 2
    assert resembles(got) == "every wrong element is 2 times the reference: a scale's exponent"


def test_a_scale_read_as_a_number_is_named():
    assert "about 120 times the reference" in resembles(REF * 120.0)


def test_a_flipped_sign_is_named():
    got = REF.copy()
    got[4] *= -1
    assert resembles(got) == "every wrong element is the reference with its sign flipped"


def test_errors_of_an_ulp_are_no_scale():
    bits = encode(REF, "bf16") + np.uint16(1)
    both = pair(bits, REF, "bf16", ("T", "D"))
    assert resemblances(both, both.differ) == ()


def test_a_stale_row_is_named_with_the_row_it_holds():
    got = REF.copy()
    got[5] = REF[4]
    assert resembles(got) == "T=5 holds the reference of T=4"


def test_many_misplaced_rows_are_summed_up():
    text = resembles(np.roll(REF, 1, axis=0))
    assert text.startswith("T=0 holds the reference of T=5, T=1 holds the reference of T=0")
    assert text.endswith("and 3 more rows likewise")


def test_swapped_neighbours_are_named_as_nibble_order_for_fp4():
    codes = np.tile(np.arange(8, dtype=np.uint8), (3, 2))
    swapped = codes.reshape(3, 8, 2)[..., ::-1].reshape(3, 16)
    both = pair(swapped, codes, "e2m1", ("N", "K"))
    assert resemblances(both, both.differ) == (
        "neighbours along K are swapped (the order of nibbles)",
    )


def test_unrelated_values_resemble_nothing():
    got = REF + np.random.default_rng(1).standard_normal(REF.shape)
    assert resembles(got) == ""

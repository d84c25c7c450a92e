"""Planted faults must be caught and named; the document is strict JSON; the text says it all."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4.errors import SpecError
from dsv4.spec import Exact, Tile, Ulp, Within
from lab.compare.census import POISON_BYTES
from lab.compare.diff import compare, jsonable
from lab.compare.text import render
from lab.compare.ulp import BUCKETS
from oracle.blocks import pack_e2m1
from oracle.formats import FORMATS, encode

T, D = 7, 512
AXES = ("T", "D")
TILE = Tile(x=("D", 128), y=("T", 1), per_thread=4)
REF = np.random.default_rng(4).standard_normal((T, D))
GOOD = encode(REF, "bf16")
EXACT = Exact(because="bytes are promised")


def diff(got, ref=REF, *, contract=EXACT, fmt="bf16", axes=AXES, tile=TILE, **more):
    return compare(got, ref, fmt=fmt, axes=axes, contract=contract, tile=tile, name="y", **more)


def planted(change):
    """The comparison of good bytes after one change in place."""
    got = GOOD.copy()
    change(got)
    return diff(got)


def words(d):
    return "\n".join([d.reason, *d.patterns, *d.notes, render(d)])


def test_good_bytes_pass_in_every_class():
    for contract in (EXACT, Ulp(0.5, ""), Within("dot", "")):
        d = diff(GOOD, contract=contract, magnitude=np.abs(REF))
        assert d.passed and d.identical == d.n == T * D and d.failing == 0
        assert (d.ulp_max, d.unwritten, d.first, d.patterns, d.notes) == (0, 0, None, (), ())
        assert d.ulp_histogram == {b: (T * D if b == "0" else 0) for b in BUCKETS}


def test_a_flipped_bit_is_located_down_to_the_thread():
    def flip(y):
        y[3, 300] ^= 0x10

    d = planted(flip)
    assert not d.passed and d.failing == 1
    first = d.first
    assert first.where == {"T": 3, "D": 300}
    assert first.index == 3 * D + 300 and first.byte == 2 * first.index
    assert int(first.got_hex, 16) ^ int(first.ref_hex, 16) == 0x10
    assert first.block == (2, 3, 0)  # 300 // 128, row 3
    assert first.thread == 11  # (300 - 256) // 4
    assert d.patterns == ("a single element is wrong",)
    assert "T=3 D=300" in words(d) and "block (2,3,0) thread 11" in words(d)


def test_a_wrong_last_tile_is_named():
    def spoil(y):
        y[:, 384:] ^= 1

    d = planted(spoil)
    assert "all 896 mismatches have D >= 384 (the last tile): every element there" in words(d)


def test_a_stale_row_is_named():
    def stale(y):
        y[5] = y[4]

    d = planted(stale)
    assert "T=5 holds the reference of T=4" in words(d)
    assert "T=5" in words(d).split("worst")[1]


def test_an_unwritten_element_is_told_from_a_wrong_one():
    first, second = GOOD.copy(), GOOD.copy()
    first[2, 7], second[2, 7] = 0xFFFF, 0xA5A5
    first[4, 9] = second[4, 9] = 0xFFFF  # written, and wrong
    d = diff(first, again=second)
    assert (d.unwritten, d.failing) == (1, 2)
    assert "1 were never written" in d.reason


def test_a_value_that_equals_the_poison_is_not_unwritten():
    ref = np.array([[-1, 5, -1, 7]], np.int64)
    got = ref.astype(np.int32)
    d = diff(got, ref, fmt="i32", again=got.copy(), tile=None)
    assert d.passed and d.unwritten == 0


def test_an_unwritten_value_fails_even_if_the_poison_is_right_by_luck():
    ref = np.array([[-1, 5]], np.int64)
    first, second = ref.astype(np.int32), ref.astype(np.int32)
    second[0, 0] = np.full(4, POISON_BYTES[1], np.uint8).view(np.int32)[0]
    d = diff(first, ref, fmt="i32", again=second, tile=None)
    assert not d.passed and d.unwritten == 1
    assert d.first.where == {"T": 0, "D": 0}


def test_unwritten_packed_bytes_count_both_elements():
    codes = np.random.default_rng(0).integers(0, 7, (2, 64), dtype=np.uint8)
    first, second = pack_e2m1(codes), pack_e2m1(codes)
    first[1, 3], second[1, 3] = POISON_BYTES
    d = diff(first, codes, fmt="e2m1x2", axes=("N", "K/2"), tile=Tile(x=("K/2", 16)), again=second)
    assert d.unwritten == 2
    assert d.first.where == {"N": 1, "K": 6}
    assert d.first.byte == 32 + 3
    assert d.first.block == (0, 0, 0)


def test_a_flipped_sign_is_named():
    def negate(y):
        y[:, 100] ^= 0x8000

    d = planted(negate)
    assert d.ulp_histogram["sign"] == T
    assert "D=100" in words(d) and "sign flipped" in words(d)


def test_truncation_passes_one_ulp_but_is_noted():
    cut = (REF.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    d = diff(cut, contract=Ulp(1.0, ""))
    assert d.passed
    assert "low bits cut off instead of rounded" in words(d)
    assert d.ulp_real_max < 1.0 and d.shrink.z < -50 and abs(d.bias.z) < 6


def test_nan_and_infinity_are_counted_on_both_sides():
    ref = REF.copy()
    ref[0, :3], ref[1, 0] = np.nan, np.inf
    got = encode(ref, "bf16")
    got[2, 0] = 0x7FC0
    d = diff(got, ref)
    assert (d.census_got.nan, d.census_ref.nan, d.failing) == (4, 3, 1)
    assert d.ulp_histogram["nan"] == 1
    assert "nan 4/3  inf 1/1" in render(d)
    assert d.to_json()["first"]["got"] is None


def test_a_failing_bound_says_how_far_and_shows_the_unrounded_value():
    got = GOOD.copy()
    got[6, 1] += 3
    d = diff(got, contract=Ulp(1.0, ""))
    assert "1 of 3584 elements leave ulp(1), the worst by" in d.reason
    assert f"of {REF[6, 1]:.9g}" in render(d)
    assert d.worst[0].where == {"T": 6} and d.worst[0].failing == 1


def test_a_passing_output_still_shows_its_first_other_byte():
    got = GOOD.copy()
    got[1, 2] += 1
    d = diff(got, contract=Ulp(3.0, ""))
    assert d.passed and d.identical == d.n - 1
    assert d.first.where == {"T": 1, "D": 2}
    assert "99.972 %" in render(d)


def test_one_mismatch_in_ten_million_is_not_rounded_to_identical():
    got = np.zeros(10**6, np.uint8)
    got[5] = 1
    d = compare(got, np.zeros(10**6, np.uint8), fmt="u8", axes=("N",), contract=EXACT)
    assert "99.999 %" in render(d) and "100 %" not in render(d)


def test_a_tile_over_joined_axes_finds_its_block():
    got = GOOD.copy()
    got[3, 300] ^= 1
    d = diff(got, tile=Tile(x=("T*D", 256), per_thread=1))
    flat = 3 * D + 300
    assert d.first.block == (flat // 256, 0, 0) and d.first.thread == flat % 256


def test_quantised_codes_are_judged_as_codes():
    values = np.random.default_rng(1).uniform(-448, 448, (3, 128))
    codes = encode(values, "e4m3")
    assert diff(codes, values, fmt="e4m3", axes=("T", "D"), tile=None).passed
    assert diff(codes, codes, fmt="e4m3", axes=("T", "D"), tile=None).passed
    codes[2, 64:] += 1
    d = diff(codes, values, fmt="e4m3", axes=("T", "D"), tile=None)
    assert d.failing == 64 and d.ulp_max == 1
    assert "max 1 code " in render(d)
    assert "T=2 (the last) and D >= 64" in words(d)


def test_the_document_has_the_promised_keys():
    document = diff(GOOD).to_json()
    promised = (
        "name format contract pass n identical ulp_max ulp_real_max ulp_histogram bias rel_l2"
        " bound_use nan_got nan_ref unwritten first"
    )
    assert set(promised.split()) <= set(document)
    assert document["name"] == "y" and document["format"] == "bf16"
    assert document["because"] == "bytes are promised"


def test_the_packed_format_keeps_its_name_in_the_document():
    codes = np.zeros((2, 32), np.uint8)
    d = compare(codes, codes, fmt="e2m1x2", axes=("N", "K/2"), contract=EXACT)
    assert d.to_json()["format"] == "e2m1x2" and d.n == 128


def test_infinities_and_nan_become_words_that_json_has():
    assert jsonable({"a": [np.inf, -np.inf, np.nan, 1.5], 2: (1,)}) == {
        "a": ["inf", "-inf", None, 1.5],
        "2": [1],
    }


@settings(max_examples=80, deadline=None)
@given(
    fmt=st.sampled_from([*FORMATS, "e2m1x2", "u8", "i32", "i64"]),
    seed=st.integers(0, 2**32 - 1),
    contract=st.sampled_from([EXACT, Ulp(1.0, "")]),
)
def test_any_bits_against_any_bits_give_strict_json_and_text(fmt, seed, contract):
    rng = np.random.default_rng(seed)
    kinds = {"e2m1x2": "u1", "u8": "u1", "i32": "i4", "i64": "i8"}
    storage = FORMATS[fmt].storage if fmt in FORMATS else np.dtype(kinds[fmt])
    top = 16 if fmt == "e2m1" else 256

    def bits():
        return rng.integers(0, top, (5, 8 * storage.itemsize), dtype=np.uint8).view(storage)

    got, ref = bits(), bits()
    same = rng.random(ref.shape) < 0.5
    ref[same] = got[same]
    d = compare(got, ref, fmt=fmt, axes=("T", "D/2"), contract=contract, again=bits())
    json.loads(json.dumps(d.to_json(), allow_nan=False))
    assert render(d).count("\n") >= 2
    assert sum(d.ulp_histogram.values()) == d.n
    assert d.passed == (d.failing == 0)
    assert (d.first is None) == (d.identical == d.n and d.failing == 0)


def test_misfits_name_the_problem():
    with pytest.raises(SpecError, match="the oracle's output the shape of the kernel's"):
        diff(GOOD, REF[:, :-1])


def test_ten_million_elements_take_seconds():
    ref = np.random.default_rng(0).standard_normal((2500, 4000))
    got = encode(ref, "bf16")
    got[:, 3900:] += 1
    start = time.process_time()
    d = compare(got, ref, fmt="bf16", axes=AXES, contract=Ulp(1.0, ""))
    assert not d.passed and "D >= 3900" in d.patterns[0]
    assert time.process_time() - start < 20  # 3 s on a desktop; this bounds the algorithm's order

"""Encoders of drafter weights: published answers, halves one by one, and what decoding gives."""

import numpy as np
import pytest

from dsv4.drafters.quant import (
    Blocks,
    bf16_to_f32,
    decode,
    encode_q4_0,
    encode_q8_0,
    format_of,
    half_from_f32,
    half_to_f32,
    precision_named,
)
from tests.speculation.refusing import refuses

RAMP = (np.arange(32, dtype=np.float32) - 15.5) / 16


def first(*values: float) -> np.ndarray:
    block = np.zeros((1, 32), np.float32)
    block[0, : len(values)] = values
    return block


def hexed(blocks: Blocks) -> str:
    return blocks.to_bytes().hex()


def test_a_ramp_in_both_formats() -> None:
    assert hexed(encode_q8_0(RAMP[None])) == (
        "d01f8189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f"
    )
    assert hexed(encode_q4_0(RAMP[None])) == "c02f809191a2a2b3b3c4c4d5d5e6e6f7f7f8"


def test_blocks_of_zeros_in_both_formats() -> None:
    assert hexed(encode_q8_0(first())) == "0000" + "00" * 32
    assert hexed(encode_q4_0(first())) == "0080" + "88" * 16


def test_the_first_of_two_equal_magnitudes_gives_its_sign_to_the_scale() -> None:
    assert hexed(encode_q4_0(first(1, -1))) == "00b0808f" + "88" * 14
    assert hexed(encode_q4_0(first(-1, 1))) == "0030808f" + "88" * 14


def test_a_scale_below_the_normal_halves_loses_its_block() -> None:
    tiny = encode_q8_0(np.full((1, 32), 1e-6, np.float32))
    assert hexed(tiny) == "0000" + "7f" * 32
    assert not decode(tiny).any()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3C00),
        (-2.0, 0xC000),
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7C00),
        (2.0**-14, 0x0400),
        (6.1e-5, 0x0000),
        (1 + 2.0**-11, 0x3C00),
        (1 + 3 * 2.0**-11, 0x3C02),
        (-0.0, 0x8000),
        (np.inf, 0x7C00),
        (np.nan, 0x7C00),
    ],
)
def test_halves_one_by_one(value: float, bits: int) -> None:
    assert int(half_from_f32(np.float32([value]))[0]) == bits


def test_every_normal_half_comes_back() -> None:
    bits = np.arange(0x10000, dtype=np.uint16)
    exponent = bits >> 10 & 31
    normal = bits[(exponent > 0) & (exponent < 31)]
    assert np.array_equal(half_from_f32(half_to_f32(normal)), normal)


def test_ties_of_q8_go_away_from_zero() -> None:
    # The scale is exactly 1, so that 0.5 and 2.5 are ties; NumPy would round both to even.
    codes = encode_q8_0(first(127, 0.5, 2.5, -0.5, 0.49999997)).codes.view(np.int8)
    assert codes[0, :5].tolist() == [127, 1, 3, -1, 0]


def test_nibbles_hold_the_two_halves_of_a_block() -> None:
    values = first(*range(-8, 8), *([0] * 16))
    values[0, 16] = 7.0
    found = decode(encode_q4_0(values))
    assert found[0, :16].tolist() == list(range(-8, 8))
    assert found[0, 16] == 7.0


@pytest.mark.parametrize(("encoder", "steps"), [(encode_q8_0, 254), (encode_q4_0, 16)])
def test_decoded_values_are_near(encoder, steps: int) -> None:  # type: ignore[no-untyped-def]
    values = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    error = np.abs(decode(encoder(values)) - values).reshape(5, 3, 32).max(axis=2)
    assert (error < np.abs(values).reshape(5, 3, 32).max(axis=2) * 2.05 / steps).all()


def test_rows_that_blocks_do_not_fill_are_refused() -> None:
    with refuses("quant-width"):
        encode_q8_0(np.zeros((2, 33), np.float32))


def test_each_mode_keeps_its_matrices() -> None:
    layer = "layers.0.mlp.up_proj.weight"
    conv, w2 = "layers.0.mlp_conv.kernel_projection.weight", "markov_head.markov_w2.weight"
    found = {
        p: [format_of(t, p) for t in (layer, conv, "fc.weight", w2)]
        for p in ("q8", "q4", "bf16", "mixed", "fc")
    }
    assert found == {
        "q8": ["q8_0", "q8_0", "q8_0", "q8_0"],
        "q4": ["q4_0", "q4_0", "q4_0", "q8_0"],
        "bf16": ["bf16", "bf16", "bf16", "bf16"],
        "mixed": ["q8_0", "bf16", "bf16", "q8_0"],
        "fc": ["q8_0", "q8_0", "bf16", "q8_0"],
    }


def test_an_unknown_mode_is_refused_and_none_is_q8() -> None:
    assert precision_named("") == "q8"
    with refuses("precision"):
        precision_named("q5")


def test_bf16_is_widened_exactly() -> None:
    assert bf16_to_f32(np.array([0x3F80, 0x0001], np.uint16)).tolist() == [1.0, 2.0**-133]

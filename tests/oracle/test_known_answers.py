"""Known answers of the model's rules, worked out beyond this code: K1 to K15."""

import numpy as np
import pytest

from oracle.attention import sink_attention, sink_attention_tiled
from oracle.blocks import decode_mxfp4, decode_nvfp4
from oracle.compressor import pool_blocks
from oracle.drafter import draft_positions
from oracle.formats import decode, encode, round_to
from oracle.hadamard import hadamard
from oracle.hyper import collapse, expand, split_mixing
from oracle.index_lists import (
    block_list,
    draft_list,
    offset,
    ring_slots,
    visible_blocks,
    window_list,
)
from oracle.quantisers import fake_quantise_fp4, fake_quantise_fp8, quantise_fp8
from oracle.rope import frequencies, rope, table_row
from oracle.router import expert_scores, routing_weights, select_experts
from oracle.swiglu import swiglu

YARN = dict(original=65536, factor=16.0, beta_fast=32.0, beta_slow=1.0)


def test_k1_e4m3_codes_both_ways():
    codes = [0x00, 0x01, 0x07, 0x08, 0x38, 0x3C, 0x50, 0x7E, 0x81, 0xB8, 0xFE]
    values = [0, 2**-9, 0.013671875, 0.015625, 1, 1.5, 8, 448, -(2**-9), -1, -448]
    assert decode(np.array(codes, np.uint8), "e4m3").tolist() == values
    assert np.isnan(decode(np.array([0x7F], np.uint8), "e4m3")).all()
    x = [76, 76.8, 72, 17, 19, 2**-10, 1.5 * 2**-9]
    assert round_to(x, "e4m3").tolist() == [80, 80, 72, 16, 20, 0, 2**-8]


def test_k2_the_low_nibble_of_mxfp4_is_the_even_element():
    packed = np.array([[0x2B] * 16], np.uint8)
    w = decode_mxfp4(packed, np.array([[0x79]], np.uint8))
    assert w[0, :2].tolist() == [-0.0234375, 0.015625]


def test_k3_nvfp4_scales_multiply():
    packed = np.array([[0x22] * 8], np.uint8)  # all ones
    w = decode_nvfp4(packed, np.array([[0x50]], np.uint8), 2.0**-12)
    assert w.tolist() == [[2.0**-9] * 16]
    assert decode(np.array([118], np.uint8), "ue8m0").tolist() == [2.0**-9]


def test_k4_fp8_groups_take_the_smallest_covering_power():
    x = [1.0, 0.3, -0.7, 0.01, -0.0004, 0.9, 0.123]
    y = [1.0, 0.3125, -0.6875, 0.009765625, -0.000396728515625, 0.875, 0.125]
    assert fake_quantise_fp8(x, 64).tolist() == y
    assert fake_quantise_fp8([1.75, 0.2], 64).tolist() == [1.75, 0.203125]
    assert quantise_fp8([1.75, 0.2], 64)[1].tolist() == [-8]
    assert quantise_fp8([3e-5, 1e-4], 64)[1].tolist() == [-22]
    assert fake_quantise_fp8([3e-5, 0.0], 64).tolist() == [3.0517578125e-5, 0.0]


def test_k5_fp4_ties_go_to_the_even_code():
    x = [1.0, 0.3, 0.1875, 0.4375, 0.875, 0.0625, 0.7, -0.1875]
    assert fake_quantise_fp4(x).tolist() == [1, 0.25, 0.25, 0.5, 1, 0, 0.75, -0.25]


def test_k6_hadamard_of_four():
    assert hadamard(np.array([[1.0, 2, 3, 4]]), 0.5).value.tolist() == [[5, -1, -2, 0]]


def test_k7_frequencies_with_and_without_stretching():
    plain = frequencies(64, 1e4)
    np.testing.assert_allclose(
        [plain[i] for i in (1, 16, 31)], [0.7498942, 0.01, 1.3335215e-4], rtol=1e-7
    )
    slowed, full = frequencies(64, 1.6e5, **YARN), frequencies(64, 1.6e5)
    known = {
        1: (0.68765604, 1.0),
        15: (0.0036355385, 1.0),
        16: (0.0022656249, 0.90625),
        20: (2.9697779e-4, 0.53125),
        24: (1.9531251e-5, 0.15625),
        25: (5.3723124e-6, 1 / 16),
        31: (5.6805294e-7, 1 / 16),
    }
    for i, (value, factor) in known.items():
        assert slowed[i] == pytest.approx(value, rel=2e-7)
        assert slowed[i] / full[i] == pytest.approx(factor, rel=2e-7)


def test_k8_pairs_turn_and_turn_back():
    table = np.array([table_row(p, frequencies(64, 1e4)) for p in range(4)])
    x = np.zeros((1, 1, 64))
    x[0, 0, 2] = 1.0  # pair 1
    turned = rope(x, table, np.array([3]), inverse=0).value
    np.testing.assert_allclose(turned[0, 0, 2:4], [-0.62792668, 0.77827250], rtol=1e-6)
    back = rope(turned, table, np.array([3]), inverse=1).value
    np.testing.assert_allclose(back, x, atol=1e-7)
    speed = frequencies(64, 1.6e5, **YARN)[1]
    assert float(np.float32(1000 * speed)) == pytest.approx(687.65607, rel=1e-7)
    row = table_row(1000, [speed])
    np.testing.assert_allclose(row, [-0.93843509, 0.34545561], rtol=1e-6)


MIX = """0.3 -1.1 0.7 2.0 -0.4 0.9 1.3 -2.2 1.0 0.0 -1.0 2.0 0.5 0.5 -0.5 0.0
-2.0 1.5 0.25 1.0 0.0 -0.75 3.0 -1.5"""
FIRST_COMB = """0.330174036 0.038278398 0.009030762 0.628789986
0.647137684 0.336232471 0.079320563 0.129897277
0.006290830 0.622721629 0.100966967 0.240576747
0.016395953 0.002766453 0.810680886 0.000735131"""
COMB = """0.346858856 0.036150526 0.003238053 0.615250731
0.590380085 0.275756436 0.024698492 0.110375252
0.007638360 0.679731000 0.041842833 0.272071112
0.055121699 0.008361037 0.930219627 0.002301903"""
EXPANDED = """10.522724556 -8.363478173 14.550318702 -10.846196567
14.281493463 -15.661973918 2.741262167 0.545532204"""


def numbers(text):
    return np.array(text.split(), float)


def test_k9_hyper_connection_split_collapse_and_expand():
    base = np.where(np.arange(24) % 2, -0.2, 0.1)
    scale = np.array([0.5, 1.0, 1.5])

    def split(iterations):
        return split_mixing(
            numbers(MIX)[None], scale, base, copies=4, iterations=iterations, eps=1e-6
        )

    np.testing.assert_allclose(split(1).comb.ravel(), numbers(FIRST_COMB), atol=6e-10)
    pre, post, comb = split(20)
    np.testing.assert_allclose(
        pre[0], [0.562177501, 0.320822301, 0.610640234, 0.689975481], atol=6e-10
    )
    np.testing.assert_allclose(
        post[0], [0.851114966, 1.336375544, 1.604367777, 0.166345393], atol=6e-10
    )
    np.testing.assert_allclose(comb.ravel(), numbers(COMB), atol=6e-10)
    x = np.array([[(1, 2), (3, -1), (0.5, 4), (-2, 0.25)]], float)
    np.testing.assert_allclose(collapse(x, pre)[0], [0.450013558, 3.418587507], atol=6e-10)
    z = np.array([[10.0, -10.0]])
    np.testing.assert_allclose(expand(z, x, post, comb).ravel(), numbers(EXPANDED), atol=6e-9)


def test_k10_compressor_with_and_without_overlap():
    s = np.arange(1.0, 9.0)
    kv = np.stack([s, 10 * s], axis=1)
    score = numbers(".1 .2 .3 .1 0 .5 .2 .2 1 .4 .5 .3 .2 .9 .6 .1").reshape(8, 2)
    ape = numbers(".5 -.5 .1 .2 0 .3 -.2 .1").reshape(4, 2)
    both = pool_blocks(kv, score, ape, overlap=True)
    np.testing.assert_allclose(both.ravel(), [27.385075242, 39.172412279], atol=6e-10)
    later = pool_blocks(kv[4:], score[4:], ape, overlap=True, previous=(kv[:4], score[:4]))
    assert later[0] == both[1]
    plain = pool_blocks(kv[:, :1], score[:, :1], ape[:, :1], overlap=False)
    np.testing.assert_allclose(plain.ravel(), [2.221658586, 5.969320635], atol=6e-10)


@pytest.mark.parametrize("attend", [sink_attention, sink_attention_tiled])
def test_k11_the_sink_joins_the_denominator_only(attend):
    q, rows = np.array([[[1, 0.5]]]), np.array([(1, 0), (0.5, 2), (-1, 1)])
    o = attend(q, rows, np.array([[0, 1, 2]]), np.array([0.3]), scale=2**-0.5)
    np.testing.assert_allclose(o[0, 0], [0.397515839, 0.929726494], atol=6e-10)


def test_k12_the_bias_selects_and_does_not_weigh():
    scores = expert_scores(np.array([[0.5, -1, 2, 25, 0]]))
    np.testing.assert_allclose(
        scores[0], [0.986953385, 0.559697854, 1.458399126, 5, 0.832554611], atol=6e-10
    )
    chosen = select_experts(scores, np.array([0, 3.5, 0, -5, 0.9]), 2)
    assert chosen.tolist() == [[1, 4]]
    weights = routing_weights(scores, chosen, scale=1.5)
    np.testing.assert_allclose(weights[0], [0.603013320, 0.896986680], atol=6e-10)


def test_k13_swiglu_clamps_the_gate_from_above_only():
    y = swiglu(np.array([[12.0, -12, 3]]), np.array([[11.0, -11, 2]]), 10.0)
    np.testing.assert_allclose(y[0], [99.995460213, 0.000737301, 5.715444761], atol=6e-10)


def test_k14_index_sets_of_prefill_and_decode():
    for p, window, blocks in ((2, [0, 1, 2], 0), (3, [0, 1, 2, 3], 1), (40, range(25, 41), 10)):
        listed = window_list([p], 16, 16)[0]
        assert listed[listed >= 0].tolist() == list(window)
        assert visible_blocks([p], 4).tolist() == [blocks]
        assert block_list([p], 4, 12)[0].tolist() == [*range(blocks), *[-1] * (12 - blocks)]
    slots = ring_slots(window_list([40], 16, 16), 16)[0]
    assert slots.tolist() == [*range(9, 16), *range(9)]
    assert block_list([40], 8, 5)[0].tolist() == [0, 1, 2, 3, 4]
    assert offset(block_list([40], 8, 5), 41)[0].tolist() == [41, 42, 43, 44, 45]
    assert offset(block_list([40], 8, 6), 16)[0].tolist() == [16, 17, 18, 19, 20, -1]


def test_k15_a_draft_row_sees_the_valid_ring_and_the_whole_block():
    assert draft_list(5, 16, 3).tolist() == [0, 1, 2, 3, 4, 5, 16, 17, 18]
    assert draft_list(40, 16, 3).tolist() == [*range(16), 16, 17, 18]
    assert draft_positions(40, 3).tolist() == [41, 42, 43]


def test_encoding_clamps_before_it_rounds():
    assert decode(encode([500.0, -1e9], "e4m3"), "e4m3").tolist() == [448, -448]

"""Laws: which switch moves which operand, and that nothing else moves."""

import numpy as np
import pytest

from oracle.formats import round_to
from oracle.laws import LAWS, Law
from oracle.quantisers import fake_quantise_fp4, fake_quantise_fp8

X = np.random.default_rng(0).normal(0, 1, (3, 256))
FP8 = fake_quantise_fp8(X, 128)
BF16 = round_to(X, "bf16")


def test_the_five_laws_and_the_engines_have_the_switches_of_their_table():
    table = {
        # single, activations, product inputs, dense, expert, kv, index
        "ref": (1, 1, 0, 1, 1, 1, 1),
        "exact": (0, 0, 0, 1, 1, 1, 1),
        "deq": (1, 1, 0, 0, 0, 1, 1),
        "deq64": (0, 0, 0, 0, 0, 1, 1),
        "smooth": (0, 0, 0, 0, 0, 0, 0),
        "engine": (0, 0, 1, 0, 1, 1, 1),
    }
    for name, wanted in table.items():
        law = LAWS[name]
        assert wanted == (
            law.single, law.activations, law.product_inputs, law.dense_codes,
            law.expert_codes, law.kv_codes, law.index_codes,
        )  # fmt: skip
    assert set(LAWS) == set(table)


def test_smooth_leaves_everything_as_it_is():
    law = LAWS["smooth"]
    for y in (
        law.rounded(X),
        law.product_input(X),
        law.dense_input(X),
        law.expert_input(X),
        law.kv_lanes(X, 64),
        law.index_lanes(X),
    ):
        assert y is X


def test_each_operator_is_its_rounding():
    law = LAWS["exact"]
    assert law.dense_input(X).tobytes() == FP8.tobytes() == law.expert_input(X).tobytes()
    assert law.index_lanes(X).tobytes() == fake_quantise_fp4(X, 32).tobytes()
    assert LAWS["deq"].rounded(X).tobytes() == BF16.tobytes()


def test_the_engine_rounds_dense_inputs_and_codes_expert_inputs_unrounded():
    law = LAWS["engine"]
    assert law.dense_input(X).tobytes() == law.product_input(X).tobytes() == BF16.tobytes()
    assert law.expert_input(X).tobytes() == FP8.tobytes()
    assert law.rounded(X) is X
    both = Law("fp8 inputs", product_inputs=True, dense_codes=True)
    assert both.dense_input(X).tobytes() == fake_quantise_fp8(BF16, 128).tobytes()


def test_rotated_lanes_of_kv_rows_are_never_coded():
    y = LAWS["exact"].kv_lanes(X, 64)
    assert y[:, 192:].tobytes() == X[:, 192:].tobytes()
    assert y[:, :192].tobytes() == fake_quantise_fp8(X[:, :192], 64).tobytes()


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_an_operator_keeps_the_precision_it_is_given(law):
    x = X.astype(law.real)
    for y in (law.rounded(x), law.dense_input(x), law.expert_input(x), law.kv_lanes(x, 64)):
        assert y.dtype == law.real


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_every_rounding_is_idempotent(law):
    for operator in (law.rounded, law.dense_input, law.expert_input, law.index_lanes):
        once = operator(X)
        assert operator(once).tobytes() == once.tobytes()

"""Halves of experts: by hand, ids and places of nothing, and the bytes of the kernels in them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle import experts as oracle
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_contract_mx_gate_up = contract_tests("experts_mx_gate_up")
test_contract_nv_gate_up = contract_tests("experts_nv_gate_up")
test_contract_mx_down = contract_tests("experts_mx_down")
test_contract_nv_down = contract_tests("experts_nv_down")
test_speed_mx_gate_up = speed_tests("experts_mx_gate_up")
test_speed_nv_gate_up = speed_tests("experts_nv_gate_up")
test_speed_mx_down = speed_tests("experts_mx_down")
test_speed_nv_down = speed_tests("experts_nv_down")


def second_half(tokens: int = 2, seed: int = 0) -> dict[str, Any]:
    """Contents of experts_mx_down for 4 experts of 21 rows, 3 a token."""
    rng = np.random.default_rng(seed)
    return dict(
        T=tokens, A=3, E=4, N=21, K=256,
        codes=rng.integers(0, 256, (4, 21, 128)).astype(np.uint8),
        scales=rng.integers(119, 123, (4, 21, 8)).astype(np.uint8),
        shared_codes=rng.integers(0, 0x7F, (21, 256)).astype(np.uint8),
        shared_scales=np.full((1, 2), 2.0**-6, np.float32),
        ids=np.tile(np.array([2, 0, 3], np.int32), (tokens, 1)),
        hidden=rng.standard_normal((tokens, 3, 256)).astype(np.float32),
        shared_x=encode(rng.standard_normal((tokens, 256)), "bf16"),
        order=np.tile(np.array([1, 0, 2], np.int32), (tokens, 1)),
    )  # fmt: skip


def test_a_second_half_by_hand() -> None:
    # Expert: code 2 is 1.0, at element 0 of row 0, scale 2^-1. Hidden 3 there: amax 3 puts it on a
    # grid of 2^-7, exactly. Shared: code 0x38 is 1.0, scale 1/4, x = 8. 1.5 + 2.
    codes, scales = np.zeros((1, 1, 64), np.uint8), np.full((1, 1, 4), 126, np.uint8)
    codes[0, 0, 0] = 2
    shared_codes, shared_x = np.zeros((1, 128), np.uint8), np.zeros((1, 128))
    shared_codes[0, 5], shared_x[0, 5] = 0x38, 8.0
    hidden = np.zeros((1, 1, 128))
    hidden[0, 0, 0] = 3.0
    value, magnitude = oracle.experts_mx_down(
        codes, scales, shared_codes, np.array([[0.25]]), np.zeros((1, 1), np.int64), hidden,
        shared_x, np.zeros((1, 1), np.int64),
    )  # fmt: skip
    assert (value.item(), magnitude.item()) == (3.5, 3.5 + 2.0)


def test_a_first_half_by_hand(run: Run) -> None:
    # Gate and up rows each hold one 1.0 at element 0. Routed: x = 2 * 2^-1, weight 2: silu(1) 1 2.
    # Shared: x = 3, codes 1.0 with scales 1 and 1/2: silu(3) 1.5, in bf16.
    codes, one = np.zeros((1, 1, 64), np.uint8), np.full((1, 1, 4), 127, np.uint8)
    codes[0, 0, 0] = 2
    shared, x, wide = (np.zeros((1, 128), np.uint8) for _ in range(2)), np.zeros((1, 128)), 0
    gate, up = shared
    gate[0, 0] = up[0, 0] = 0x38
    x[0, 0], wide = 2.0, np.zeros((1, 128))
    wide[0, 0] = 3.0
    got = run(
        "experts_mx_gate_up", T=1, A=1, E=1, N=1, K=128, gate_codes=codes, gate_scales=one,
        up_codes=codes, up_scales=one, shared_gate_codes=gate, shared_gate_scales=1.0,
        shared_up_codes=up, shared_up_scales=0.5, ids=0, x=encode(x, "e4m3"), x_scales=0.5,
        wide_x=encode(wide, "bf16"), weights=2.0, limit=0.0,
    )  # fmt: skip
    assert got.y.item() == pytest.approx(2.0 / (1.0 + np.exp(-1.0)), rel=1e-6)
    assert got.shared_y.item() == pytest.approx(1.5 * 3.0 / (1.0 + np.exp(-3.0)), rel=2.0**-8)


def test_the_shared_expert_comes_last_and_chosen_ones_as_order_says(run: Run) -> None:
    # Sums of 2^24, 1 and -2^24 tell their order: every expert gives one of them.
    given = second_half(1)
    given["codes"][:], given["scales"][:], given["shared_codes"][:] = 0, 127, 0
    given["codes"][:, :, 0] = 2
    given["hidden"][:] = 0.0
    given["hidden"][0, :, 0] = [2.0**24, 1.0, -(2.0**24)]
    given["shared_codes"][:, 0], given["shared_scales"][:] = 0x38, 1.0
    given["shared_x"] = encode(np.eye(1, 256) * 0.5, "bf16")
    for order, total in (([0, 1, 2], 0.0), ([0, 2, 1], 1.0), ([1, 0, 2], 0.0)):
        given["order"][0] = order
        assert set(run("experts_mx_down", **given).y.reshape(-1)) == {total + 0.5}


def test_a_token_has_the_bytes_of_a_launch_of_its_own(run: Run) -> None:
    given = second_half(3)
    together = run("experts_mx_down", **given).y
    per_token = ("ids", "hidden", "shared_x", "order")
    for t in range(3):
        own = {n: v[t : t + 1].copy() if n in per_token else v for n, v in given.items()}
        assert run("experts_mx_down", **{**own, "T": 1}).y[0].tobytes() == together[t].tobytes()


@pytest.mark.parametrize("stray", [-1, 4, 2**31 - 1, -(2**31)])
def test_an_id_that_is_no_expert_makes_its_token_nan_and_no_other(stray: int, run: Run) -> None:
    given = second_half(2)
    given["ids"][1, 2] = stray
    got = run("experts_mx_down", **given).y
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_more_tokens_than_a_product_has_columns_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="eight columns"):
        run("experts_mx_gate_up", T=9, A=1, E=1, N=1, K=128, ids=0, limit=0.0)


@pytest.mark.stress
def test_a_thousand_launches_on_poisoned_outputs_give_the_same_bytes() -> None:
    device, given = HostDevice(workers=2), second_half(3)
    seen = {run_kernel("experts_mx_down", device, **given).y.tobytes() for _ in range(1000)}
    assert len(seen) == 1

"""Scores with their selection: the same bytes by tensor cores and by chains, the one right list."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, speed_tests
from oracle.formats import encode
from oracle.indexer_select import indexer_select

Run = Callable[..., SimpleNamespace]

test_contract_indexer_select = contract_tests("indexer_select")
test_speed_indexer_select = speed_tests("indexer_select")

_ZERO = dict.fromkeys(("bins", "list", "tickets"), 0)
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def inputs(T: int, H: int, K: int, N: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Queries and keys on the grid of FP4, free weights, everything visible."""
    rng = np.random.default_rng(seed)

    def quantised(*shape: int) -> np.ndarray:
        made = rng.choice(GRID, shape) * rng.choice(np.float32([-1, 1]), shape)
        return made.astype(np.float32)

    return {
        "q": quantised(T, H, K),
        "keys": quantised(N, K),
        "weights": rng.standard_normal((T, H)).astype(np.float32),
        "visible": np.full(T, N, np.int32),
    }


def chosen(run: Run, places: int, *, listed: int = 100_000, **content: Any) -> SimpleNamespace:
    """One launch."""
    (T, H, K), N = content["q"].shape, len(content["keys"])
    content |= {name: encode(content[name], "bf16") for name in ("q", "keys")}
    axes = {"T": T, "H": H, "K": K, "N": N, "S": places, "L": listed}
    return run("indexer_select", **axes, **content, **_ZERO, wscale=0.125, offset=0)


def scored(run: Run, **content: Any) -> np.ndarray:
    """The scores of the chain."""
    (T, H, K), N = content["q"].shape, len(content["keys"])
    content |= {name: encode(content[name], "bf16") for name in ("q", "keys")}
    axes = {"T": T, "H": H, "K": K, "N": N}
    return run("indexer_score_f32", **axes, **content, wscale=0.125).score


def test_three_keys_by_hand(run: Run) -> None:
    q = np.zeros((1, 2, 16), np.float32)
    q[0, 0, 0], q[0, 1, 1] = 2.0, 3.0
    keys = np.zeros((3, 16), np.float32)
    keys[:, 0], keys[:, 1] = [1, -1, 0.5], [0.5, 2, 4]
    content = dict(q=q, keys=keys, weights=np.float32([[8, 16]]), visible=np.int32([3]))
    # Head 0: 2, 0, 1 times 1; head 1: 1.5, 6, 12 times 2.
    got = chosen(run, 2, **content)
    assert got.score[0].tolist() == [5.0, 12.0, 25.0]
    assert got.ids.tolist() == [[2, 1]]
    zeros = {name: np.zeros(1, np.int64) for name in _ZERO}
    said = indexer_select(**content, **zeros, wscale=0.125, offset=7, S=5)
    assert said["ids"].tolist() == [[9, 8, 7, -1, -1]]


@pytest.mark.parametrize("odd", [0.3125, np.inf, np.nan, 2.0**-130, 2.0**120, 1e-45])
def test_one_number_off_the_grid_does_not_change_how_any_key_is_scored(
    odd: float, run: Run
) -> None:
    content = inputs(2, 35, 128, 150)
    content["keys"][17, 3] = content["keys"][90, 127] = odd
    expected = scored(run, **content)
    assert np.array_equal(chosen(run, 20, **content).score, expected, equal_nan=True)
    content["q"][1, 34, 5] = odd
    expected = scored(run, **content)
    assert np.array_equal(chosen(run, 20, **content).score, expected, equal_nan=True)


@pytest.mark.parametrize("apart", range(0, 16, 3))
def test_powers_of_groups_that_lie_apart_leave_the_bytes_of_the_chain(apart: int, run: Run) -> None:
    content = inputs(1, 8, 128, 140, seed=apart)
    content["keys"][:, 32:64] *= np.float32(2.0**-apart)
    content["q"][..., 64:96] *= np.float32(2.0**apart)
    assert np.array_equal(chosen(run, 9, **content).score, scored(run, **content))


@pytest.mark.parametrize("places", [1, 8, 64, 300])
@pytest.mark.parametrize("kinds", [1, 2, 5, 1000])
def test_the_selection_is_a_stable_sort(kinds: int, places: int, run: Run) -> None:
    content = inputs(1, 1, 16, 3000, seed=kinds)
    content["keys"] = content["keys"][np.random.default_rng(1).integers(0, kinds, 3000)]
    got = chosen(run, places, **content)
    order = np.argsort(-scored(run, **content)[0], kind="stable")[:places]
    assert np.array_equal(got.ids[0], order)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_blocks_come_does_not_show(seed: int) -> None:
    content = inputs(2, 3, 16, 700)

    def on(device: HostDevice) -> SimpleNamespace:
        return chosen(lambda kernel, **c: run_kernel(kernel, device, **c), 50, **content)

    plain, shuffled = on(HostDevice()), on(HostDevice(mode="shuffle", seed=seed, workers=2))
    assert np.array_equal(plain.ids, shuffled.ids)
    assert not any(getattr(shuffled, name).any() for name in _ZERO)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [(dict(K=20), "8 elements"), (dict(H=65), "share"), (dict(N=2000, S=1025), "sorted")],
    ids=str,
)
def test_sizes_that_no_block_can_take_are_refused(
    sizes: dict[str, int], reason: str, run: Run
) -> None:
    usual: dict[str, Any] = dict(T=1, H=2, K=16, N=9, S=3, L=9)
    with pytest.raises(LaunchError, match=reason):
        run("indexer_select", **{**usual, **sizes}, visible=1, **_ZERO, wscale=1, offset=0)

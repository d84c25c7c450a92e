"""Gates: the contract, ties at every level, ids and tokens that name nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import LaunchError
from dsv4.runtime.hostdevice import HostDevice
from lab.cases.fills import ids, normal, sprinkled
from lab.testing import WithoutClusters, contract_tests, run_kernel, speed_tests
from oracle.formats import encode

Run = Callable[..., SimpleNamespace]

test_contract_scored = contract_tests("router_gate")
test_contract_hashed = contract_tests("router_gate_hash")
test_speed_scored = speed_tests("router_gate")
test_speed_hashed = speed_tests("router_gate_hash")


def gate(raw: Any, active: int = 2, **more: Any) -> dict[str, Any]:
    """Contents whose products are these raw scores [T,E], one column of D each."""
    scores = np.atleast_2d(np.asarray(raw, np.float64))
    tokens, experts = scores.shape
    width = -(-tokens // 8) * 8
    w = np.zeros((experts, width))
    w[:, :tokens] = scores.T
    return dict(
        T=tokens, E=experts, A=active, D=width, M=1, x=np.eye(tokens, width, dtype=np.float32),
        w=encode(w, "bf16"), bias=0.0, mix=0.0, hyper_scale=1.0, hyper_base=0.0, ticket=0,
        scale=1.0, eps=1e-6,
    ) | more  # fmt: skip


@pytest.mark.parametrize("experts", [1, 5, 33, 160, 256])
@pytest.mark.parametrize("kernel", ["router_gate", "router_gate_hash"])
def test_cards_without_clusters_give_the_same_bytes(kernel: str, experts: int) -> None:
    chooses = dict(bias=normal(0.3))
    if kernel == "router_gate_hash":
        chooses = dict(table=ids("E"), tokens=ids("V"))
    given: dict[str, Any] = dict(
        T=1, E=experts, A=min(experts, 6), D=520, M=4, x=normal(), mix=normal(), hyper_base=0.5,
        w=sprinkled(normal(), [np.nan, np.inf], 1e-3), hyper_scale=0.8, ticket=0, scale=1.5,
        eps=1e-6, **chooses, **(dict(V=9) if "table" in chooses else {}),
    )  # fmt: skip
    together = run_kernel(kernel, HostDevice(), **given)
    for mode in ("run", "shuffle", "check"):
        alone = run_kernel(kernel, WithoutClusters(mode=mode), **given)
        for name, y in vars(together).items():
            assert vars(alone)[name].tobytes() == y.tobytes(), (mode, name)


def test_the_largest_scores_are_chosen_the_largest_first(run: Run) -> None:
    got = run("router_gate", **gate([0.5, -1.0, 2.0, 25.0, 0.0]))
    assert got.ids.tolist() == [[3, 2]] and got.order.tolist() == [[1, 0]]
    assert got.weights.sum() == pytest.approx(1.0, rel=1e-6)
    assert got.scores[0, 3] == 5.0


def test_equal_scores_go_to_the_lowest_experts_over_all_lanes(run: Run) -> None:
    # 70 experts lie in three places of a lane; equals cross lanes and places.
    raw = np.zeros((1, 70))
    raw[0, [1, 33, 65, 2, 69]] = 1.0
    got = run("router_gate", **gate(raw, active=6))
    assert got.ids.tolist() == [[1, 2, 33, 65, 69, 0]]


@pytest.mark.parametrize("experts", [33, 160, 256])
def test_equal_scores_of_all_blocks_of_a_cluster_go_to_the_lowest_experts(
    run: Run, experts: int
) -> None:
    raw = np.zeros((1, experts))
    raw[0, [experts - 1, 3, experts // 2, 17, 18]] = 1.0
    got = run("router_gate", **gate(raw, active=7))
    assert got.ids.tolist() == [[3, *sorted({17, 18, experts // 2}), experts - 1, 0, 1, 2][:7]]


def test_numbers_come_before_nan_and_minus_infinity_does_too(run: Run) -> None:
    bias = np.array([np.nan, -np.inf, 0.0, np.nan, -np.inf], np.float32)
    got = run("router_gate", **gate(np.zeros(5), active=5, bias=bias))
    assert got.ids.tolist() == [[2, 1, 4, 0, 3]]


def test_zeros_of_either_sign_tie(run: Run) -> None:
    # Scores are 1 each: biases of -1 make +0, and none makes -0; bias alone decides nothing here.
    got = run("router_gate", **gate([-300.0, -300.0], bias=np.array([-0.0, 0.0], np.float32)))
    assert got.ids.tolist() == [[0, 1]]


def test_a_table_names_experts_and_strays_make_weights_nan(run: Run) -> None:
    table = np.array([[2, 0], [1, 7], [3, 1]], np.int64)
    tokens = np.array([0, 1, 9], np.int32)
    given = gate(np.ones((3, 4)), table=table, tokens=tokens, V=3)
    del given["bias"]
    got = run("router_gate_hash", **given)
    assert got.ids.tolist() == [[2, 0], [1, -1], [-1, -1]]
    assert np.isfinite(got.weights[0]).all() and np.isnan(got.weights[1:]).all()


def test_every_row_is_balanced_when_warps_are_fewer_than_rows(run: Run) -> None:
    mix = np.random.default_rng(0).standard_normal((8, 24)).astype(np.float32)
    given = gate(np.ones((8, 4)), M=4, mix=mix)
    got = run("router_gate", **given)
    split = run("hyper_split", T=8, M=4, mix=mix, scale=1.0, base=0.0, eps=1e-6)
    assert got.post.tobytes() == split.post.tobytes()
    assert got.comb.tobytes() == split.comb.tobytes()


def test_more_rows_than_a_block_shares_weights_among_are_refused(run: Run) -> None:
    with pytest.raises(LaunchError, match="at most 8 rows"):
        run("router_gate", **gate(np.ones((9, 4))))

"""Blocks of a cluster on the CPU: values put into each other's memory, and what is a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.errors import KernelFault, LaunchError
from dsv4.runtime.host import build

SOURCE = Path(__file__).parent / "kernels" / "cluster.cu"
FAULTS = dict(EARLY=1, NO_SYNC=2, GONE=3, UNWRITTEN=4, OUTSIDE=5)
MODES = [("run", 0), *(("shuffle", seed) for seed in (1, 2, 3)), ("check", 0), ("check", 5)]


def passed_on(mode: str, *, cluster: int, rounds: int, seed: int = 0, fault: int = 0,
              workers: int | None = None) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What every block had and has; two clusters."""
    x = np.random.default_rng(3).standard_normal((2 * cluster, 64)).astype(np.float32)
    y = np.zeros_like(x)
    build(SOURCE, defines=dict(CLUSTER=cluster, FAULT=fault), mode=mode).launch(
        "pass_on",
        grid=(2 * cluster, 1, 1),
        block=(64, 1, 1),
        shared_bytes=256,
        args=[x, y, np.int32(rounds)],
        seed=seed,
        cluster=cluster,
        workers=workers,
    )
    return x, y


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("cluster", [1, 2, 5, 16])
def test_values_go_round_in_a_cluster_and_never_leave_it(
    mode: str, seed: int, cluster: int
) -> None:
    x, y = passed_on(mode, cluster=cluster, rounds=7, seed=seed)
    want = np.roll(x.reshape(2, cluster, 64), 7, axis=1)[..., ::-1]
    assert y.tobytes() == want.tobytes()


def test_workers_take_whole_clusters() -> None:
    x, y = passed_on("run", cluster=16, rounds=3, workers=2)
    want = np.roll(x.reshape(2, 16, 64), 3, axis=1)[..., ::-1]
    assert y.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("EARLY", "early-access", "before the first cluster_sync"),
        ("NO_SYNC", "race", "there is no cluster_sync between them"),
        ("GONE", "early-end", "block 0 of the cluster was reached after it had returned"),
        ("UNWRITTEN", "uninitialised-shared", "which no thread of the block has written"),
        ("OUTSIDE", "out-of-bounds", "is none in this block's"),
    ],
)
def test_check_mode_names_a_broken_rule(name: str, kind: str, words: str) -> None:
    # In the natural order a later block may put before an earlier one has read.
    with pytest.raises(KernelFault, match=words) as caught:
        for seed in range(4):
            passed_on("check", cluster=4, rounds=2, fault=FAULTS[name], seed=seed)
    assert caught.value.kind == kind
    assert Path(caught.value.file) == SOURCE


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_clusters_are_ordered_among_each_other_by_fences_and_atomics(mode: str) -> None:
    x = np.arange(12, dtype=np.float32)
    left, y, ticket = np.zeros(3, np.float32), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    build(SOURCE, defines=dict(CLUSTER=4), mode=mode).launch(
        "last_adds", grid=(12, 1, 1), block=(64, 1, 1), args=[x, left, y, ticket], seed=2, cluster=4
    )
    assert y[0] == x.sum() and ticket[0] == 0


@pytest.mark.parametrize(("cluster", "blocks"), [(17, 17), (0, 4), (3, 4)])
def test_a_cluster_that_no_grid_holds_is_refused(cluster: int, blocks: int) -> None:
    values: dict[str, Any] = dict(grid=(blocks, 1, 1), block=(64, 1, 1), shared_bytes=256)
    x = np.zeros(64 * blocks, np.float32)
    with pytest.raises(LaunchError, match=f"clusters of {cluster} blocks"):
        build(SOURCE, defines=dict(CLUSTER=4)).launch(
            "pass_on", args=[x, x.copy(), np.int32(1)], cluster=cluster, **values
        )

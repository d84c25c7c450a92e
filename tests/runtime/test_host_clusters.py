"""Blocks of a cluster on the CPU: letters into each other's memory, and what is a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.errors import KernelFault, LaunchError
from dsv4.runtime.host import Mode, build

SOURCE = Path(__file__).parent / "kernels" / "cluster.cu"
FAULTS = ("EARLY", "NO_WAIT", "GONE", "LOST", "OUTSIDE", "TWICE", "UNSENT")
MODES = [("run", 0), *(("shuffle", seed) for seed in (1, 2, 3)), ("check", 0), ("check", 5)]


def sent_round(
    mode: Mode, *, cluster: int, seed: int = 0, fault: str = "", workers: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What every block of two clusters has in the end, and what it should have."""
    x = np.random.default_rng(3).standard_normal((2 * cluster, 64)).astype(np.float32)
    y = np.zeros_like(x)
    number = FAULTS.index(fault) + 1 if fault else 0
    build(SOURCE, defines=dict(CLUSTER=cluster, FAULT=number), mode=mode).launch(
        "send_round",
        grid=(2 * cluster, 1, 1),
        block=(64, 1, 1),
        shared_bytes=256,
        args=[x, y],
        seed=seed,
        cluster=cluster,
        workers=workers,
    )
    return y, np.roll(x.reshape(2, cluster, 64), 3, axis=1)[..., ::-1]


@pytest.mark.parametrize(("mode", "seed"), MODES)
@pytest.mark.parametrize("cluster", [1, 2, 5, 16])
def test_letters_go_round_in_a_cluster_and_never_leave_it(
    mode: Mode, seed: int, cluster: int
) -> None:
    got, want = sent_round(mode, cluster=cluster, seed=seed)
    assert got.tobytes() == want.tobytes()


def test_workers_take_whole_clusters() -> None:
    got, want = sent_round("run", cluster=16, workers=2)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("EARLY", "early-access", "before await_cluster"),
        ("NO_WAIT", "race", "they have not waited for each other"),
        ("GONE", "early-end", "block 0 of the cluster was reached after it had returned"),
        ("LOST", "deadlock", "waits for 256 bytes of mail; 252 were sent, and all blocks wait"),
        ("OUTSIDE", "out-of-bounds", "is none in this block's"),
        ("TWICE", "race", "a letter goes to a place that has been written"),
        ("UNSENT", "uninitialised-shared", "which no thread of the block has written"),
    ],
)
def test_check_mode_names_a_broken_rule(fault: str, kind: str, words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        sent_round("check", cluster=4, fault=fault)
    assert caught.value.kind == kind
    assert Path(caught.value.file) == SOURCE


def taken(mode: Mode, seed: int = 0, fault: str = "") -> tuple[np.ndarray, np.ndarray]:
    """What four blocks have in the end where letters take the place of what they had."""
    x = np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32)
    y = np.zeros_like(x)
    number = ("", "READ", "WRITTEN", "ODD").index(fault)
    build(SOURCE, defines=dict(CLUSTER=4, FAULT=number), mode=mode).launch(
        "take_place", grid=(4, 1, 1), block=(64, 1, 1), args=[x, y], seed=seed, cluster=4
    )
    had = x.reshape(4, 32, 2)[..., ::-1].reshape(4, 64)
    return y, had + np.roll(had, 1, axis=0)


@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_a_letter_takes_the_place_of_what_its_block_had_done_with(mode: Mode, seed: int) -> None:
    got, want = taken(mode, seed)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("READ", "race", "that its block has read: no __syncthreads between"),
        ("WRITTEN", "race", "a letter goes to a place that has been written"),
        ("ODD", "misaligned", "a letter's place is not a multiple of its size"),
    ],
)
def test_a_letter_that_takes_a_place_too_early(fault: str, kind: str, words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        taken("check", fault=fault)
    assert caught.value.kind == kind
    assert Path(caught.value.file) == SOURCE


def added(mode: Mode, fault: int = 0) -> tuple[float, float, int]:
    """What three clusters of four blocks add up, the sum, and what is left of the ticket."""
    x = np.arange(12, dtype=np.float32)
    left, y, ticket = np.zeros(3, np.float32), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    build(SOURCE, defines=dict(CLUSTER=4, FAULT=fault), mode=mode).launch(
        "last_adds", grid=(12, 1, 1), block=(64, 1, 1), args=[x, left, y, ticket], seed=2, cluster=4
    )
    return float(y[0]), float(x.sum()), int(ticket[0])


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
def test_clusters_are_ordered_among_each_other_by_fences_and_atomics(mode: Mode) -> None:
    got, want, ticket = added(mode)
    assert got == want and ticket == 0


def test_mail_orders_no_global_memory() -> None:
    with pytest.raises(KernelFault, match="they have not waited for each other") as caught:
        added("check", fault=1)
    assert caught.value.kind == "race"


@pytest.mark.parametrize(("cluster", "blocks"), [(17, 17), (0, 4), (3, 4)])
def test_a_cluster_that_no_grid_holds_is_refused(cluster: int, blocks: int) -> None:
    values: dict[str, Any] = dict(grid=(blocks, 1, 1), block=(64, 1, 1), shared_bytes=256)
    x = np.zeros(64 * blocks, np.float32)
    with pytest.raises(LaunchError, match=f"clusters of {cluster} blocks"):
        build(SOURCE, defines=dict(CLUSTER=4)).launch(
            "send_round", args=[x, x.copy()], cluster=cluster, **values
        )

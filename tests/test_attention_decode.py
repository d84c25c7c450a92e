"""Decode attention: the bytes of the launches that it stands for, whoever comes last."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, same_without_clusters, speed_tests
from oracle.attention import sink_attention
from oracle.attention_decode import attention_decode

Run = Callable[..., SimpleNamespace]

test_contract_attention_decode = contract_tests("attention_decode")
test_speed_attention_decode = speed_tests("attention_decode")


def inputs(T: int, H: int, K: int, N: int, R: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Queries, rows, sinks, and a table of as many positions as there are queries."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (T, H, K), "kv": (N, K), "sink": (H,)}
    content: dict[str, Any] = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()
    }
    turns = rng.uniform(-np.pi, np.pi, (T, R // 2))
    table = np.stack([np.cos(turns), np.sin(turns)], axis=2).reshape(T, R)
    content |= {"table": table.astype(np.float32), "positions": np.arange(T, dtype=np.int32)}
    return content


def attended(run: Run, ids: Any, **content: Any) -> SimpleNamespace:
    """One launch."""
    ids = np.asarray(ids, np.int32)
    (T, H, K), (N, _), (P, R) = (content[n].shape for n in ("q", "kv", "table"))
    axes = {"T": T, "H": H, "K": K, "N": N, "S": ids.shape[1], "P": P, "R": R}
    return run("attention_decode", **axes, ids=ids, ticket=0, scale=0.5, eps=1e-6, **content)


def test_oracle_normalises_rotates_attends_and_rotates_back() -> None:
    # A head of (3, 4), turned by a quarter: norm 12.5^-1/2, then (-4, 3) of it.
    q, kv, sink = np.array([[[3.0, 4.0]]]), np.array([[1.0, 0.5], [-2.0, 1.0]]), np.array([0.2])
    table = np.array([[0.0, 1.0]])
    place = dict(table=table, positions=np.array([0]), ticket=np.zeros((1, 1), np.int64))
    ids = np.array([[0, 1]])
    got = attention_decode(q, kv, ids, sink, **place, scale=0.7, eps=1e-9)["o"]
    turned = np.array([[[-4.0, 3.0]]]) / np.sqrt(12.5)
    wanted = sink_attention(turned, kv, ids, sink, scale=0.7)
    assert np.allclose(got.value[0, 0], [wanted[0, 0, 1], -wanted[0, 0, 0]], rtol=1e-9)


@pytest.mark.parametrize("length", [0, 1, 39, 40, 41, 127])
def test_padding_does_not_show_behind_the_join(length: int, run: Run) -> None:
    content = inputs(1, 9, 12, 50, 6, seed=length)
    entries = np.random.default_rng(length).integers(0, 50, length)
    written = []
    for size in (max(length, 1), length + 7, length + 90):
        for start in (0, size - length):
            ids = np.full((1, size), -1)
            ids[0, start : start + length] = entries
            written.append(attended(run, ids, **content).o)
    assert all(np.array_equal(w, written[0]) for w in written)
    assert length or not written[0].any()


def test_rows_of_a_round_are_what_they_are_alone(run: Run) -> None:
    content = inputs(5, 11, 16, 90, 4)
    ids = np.random.default_rng(2).integers(-30, 90, (5, 120))
    together = attended(run, ids, **content).o
    for t in range(5):
        one = slice(t, t + 1)
        alone = {n: content[n][one] if n in ("q", "positions") else content[n] for n in content}
        assert np.array_equal(attended(run, ids[one], **alone).o[0], together[t])


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_blocks_come_does_not_show(seed: int) -> None:
    content = inputs(2, 19, 8, 90, 4)
    ids = np.random.default_rng(1).integers(-5, 90, (2, 210))

    def on(device: HostDevice) -> SimpleNamespace:
        return attended(lambda kernel, **c: run_kernel(kernel, device, **c), ids, **content)

    plain, shuffled = on(HostDevice()), on(HostDevice(mode="shuffle", seed=seed, workers=2))
    assert np.array_equal(plain.o, shuffled.o)
    assert not plain.ticket.any() and not shuffled.ticket.any()


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
@pytest.mark.parametrize(
    ("T", "H", "K", "size"),
    [(1, 5, 36, 60), (2, 3, 8, 97), (6, 5, 36, 181), (1, 61, 8, 277), (1, 61, 12, 633)],
)
def test_cards_without_clusters_join_to_the_same_bytes(
    mode: str, T: int, H: int, K: int, size: int
) -> None:
    rng = np.random.default_rng(size)
    content = inputs(T, H, K, 90, 4, seed=size)
    content["kv"][rng.random((90, K)) < 1e-3] = np.nan
    content["kv"][::40, 0] = np.inf
    content["sink"][::3] = -np.inf
    ids = rng.integers(-20, 90, (T, size)).astype(np.int32)
    ids[0, 41:] = -1  # chunks of nothing

    def same(kernel: str, **c: Any) -> Any:
        return same_without_clusters(kernel, mode=mode, **c)

    assert attended(same, ids, **content)


def test_a_large_sink_takes_everything(run: Run) -> None:
    content = inputs(1, 2, 8, 5, 4)
    content["sink"][:] = 400
    assert np.abs(attended(run, [[0, 1, 2, 3, 4]], **content).o).max() < 1e-30

"""Attention on tensor cores: by hand, against the definition, and what must not matter."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.errors import LaunchError
from lab.testing import contract_tests, speed_tests
from oracle.sdpa_bf16 import sdpa_bf16

Run = Callable[..., SimpleNamespace]

test_contract = contract_tests("sdpa_bf16")
test_speed = speed_tests("sdpa_bf16")


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def content(T: int = 4, N: int = 140, last: int = 131) -> dict[str, object]:
    return dict(T=T, H=2, N=N, G=1, K=16, scale=0.25, last=last, q=normal(T, 2, 16, seed=0),
                k=normal(N, 1, 16, seed=1), v=normal(N, 1, 16, seed=2))  # fmt: skip


def test_two_keys_by_hand(run: Run) -> None:
    # Scores 0 and 2: weights 1 and e^2 of their sum.
    q, k, v = (np.zeros((n, 1, 16), np.float32) for n in (1, 2, 2))
    q[0, 0, 3], k[1, 0, 3] = 1.0, 2.0
    v[0, 0, 5], v[1, 0, 5], v[1, 0, 6] = 4.0, 8.0, 1.0
    got = run("sdpa_bf16", T=1, H=1, N=2, G=1, K=16, q=q, k=k, v=v, last=2, scale=1.0).y[0, 0]
    share = np.exp(2) / (1 + np.exp(2))
    assert got[[5, 6]] == pytest.approx([4 + 4 * share, share], rel=2e-3)
    assert not np.delete(got, [5, 6]).any()


def test_inputs_are_rounded_to_bf16_and_nothing_else_shows(run: Run) -> None:
    # One key: its weight is one whatever its score, and its values come back as bf16.
    v = np.array([[[1 + 2.0**-9] * 16]], np.float32)
    got = run("sdpa_bf16", T=1, H=1, N=1, G=1, K=16, v=v, last=1, scale=1.0).y
    assert (got == 1.0).all()


def test_keys_behind_the_last_are_never_read(run: Run) -> None:
    same = content()
    once = run("sdpa_bf16", **same).y
    for name in "kv":
        same[name] = np.array(same[name])
        same[name][131:] = np.nan  # type: ignore[index]
    assert run("sdpa_bf16", **same).y.tobytes() == once.tobytes()


def test_a_row_gives_the_same_bytes_alone_and_among_others(run: Run) -> None:
    together = content(T=18)
    whole = run("sdpa_bf16", **together).y
    for t in (0, 15, 16, 17):
        alone = together | dict(T=1, q=together["q"][t : t + 1])  # type: ignore[index]
        assert run("sdpa_bf16", **alone).y[0].tobytes() == whole[t].tobytes()


def test_a_score_that_is_no_number_makes_its_row_none(run: Run) -> None:
    broken = content()
    broken["q"] = np.array(broken["q"])
    broken["q"][2, 1, 0] = np.nan  # type: ignore[index]
    got = run("sdpa_bf16", **broken).y
    assert np.isnan(got[2, 1]).all()
    assert np.isfinite(got[[0, 1, 3]]).all() and np.isfinite(got[2, 0]).all()


def test_the_oracle_sees_the_first_keys_alone() -> None:
    q, k, v = normal(2, 2, 16, seed=0), normal(9, 1, 16, seed=1), normal(9, 1, 16, seed=2)
    cut = sdpa_bf16(q, k, v, 4, 0.3).value
    assert np.array_equal(cut, sdpa_bf16(q, k[:4], v[:4], 4, 0.3).value)
    assert not np.array_equal(cut, sdpa_bf16(q, k, v, 5, 0.3).value)


@pytest.mark.parametrize(("k", "word"), [(24, "16 lanes"), (144, "48 KiB")])
def test_head_widths_that_do_not_fit_are_refused(k: int, word: str, run: Run) -> None:
    with pytest.raises(LaunchError, match=word):
        run("sdpa_bf16", T=1, H=1, N=2, G=1, K=k, last=2, scale=1.0)

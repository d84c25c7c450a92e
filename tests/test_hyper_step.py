"""Between two sub-blocks: the contract, what a group of 128 shares, tokens that do not exist."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4.errors import SpecError
from dsv4.runtime.hostdevice import HostDevice
from lab.testing import contract_tests, run_kernel, same_without_clusters, speed_tests
from oracle.formats import decode, encode

Run = Callable[..., SimpleNamespace]

test_contract_open = contract_tests("hyper_step_open")
test_contract_streams = contract_tests("hyper_step_streams")
test_contract_entry = contract_tests("hyper_step_entry")
test_contract_exit = contract_tests("hyper_step_exit")
test_speed_open = speed_tests("hyper_step_open")
test_speed_streams = speed_tests("hyper_step_streams")
test_speed_entry = speed_tests("hyper_step_entry")
test_speed_exit = speed_tests("hyper_step_exit")

EPS: dict[str, float] = dict(mix_eps=1e-6, eps=1e-6, norm_eps=1e-6)


def between(rows: int = 2, width: int = 384, streams: int = 4) -> dict[str, Any]:
    """Contents of hyper_step_open, random but for scales of 1."""
    rng = np.random.default_rng(0)
    mixes = (2 + streams) * streams

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return dict(
        T=rows, M=streams, D=width, z=normal(rows, width), x=normal(rows, streams, width),
        post=normal(rows, streams), comb=np.abs(normal(rows, streams, streams)),
        fn=normal(mixes, streams * width) / 16, scale=1.0, base=normal(mixes), gain=normal(width),
        ticket=0, **EPS,
    )  # fmt: skip


def test_the_input_comes_in_three_formats_of_the_same_numbers(run: Run) -> None:
    got = run("hyper_step_open", **between())
    assert np.array_equal(got.wide, decode(encode(got.y, "bf16"), "bf16"))
    groups = np.abs(got.y.reshape(2, 3, 128)).max(axis=2)
    # The smallest power of two under which the largest magnitude is a code.
    assert np.array_equal(got.scales, 2.0 ** np.ceil(np.log2(groups / 448.0)))
    wide = got.scales.repeat(128, axis=1)
    assert np.array_equal(decode(got.codes, "e4m3"), decode(encode(got.y / wide, "e4m3"), "e4m3"))


def test_open_mixes_are_those_that_a_balancing_launch_uses(run: Run) -> None:
    given = between()
    closed, left = run("hyper_post_pre_norm_f32", **given), run("hyper_step_open", **given)
    scale, base = np.ones(3, np.float32), given["base"]
    split = run("hyper_split", T=2, M=4, mix=left.mix.astype(np.float32), scale=scale, base=base,
                eps=EPS["eps"])  # fmt: skip
    assert split.post.tobytes() == closed.post_next.tobytes()
    assert split.comb.tobytes() == closed.comb_next.tobytes()
    assert left.y.tobytes() == closed.y.tobytes()


def test_streams_that_are_there_enter_as_new_ones_do(run: Run) -> None:
    given = between()
    made = run("hyper_step_open", **given)
    there = {n: v for n, v in given.items() if n not in ("z", "post", "comb")}
    again = run("hyper_step_streams", **{**there, "x": made.x_next.astype(np.float32)})
    for name in ("mix", "y", "wide", "codes", "scales"):
        assert vars(again)[name].tobytes() == vars(made)[name].tobytes(), name


def test_a_token_that_does_not_exist_is_a_row_of_nan(run: Run) -> None:
    given = {n: v for n, v in between(3, 128).items() if n not in ("z", "x", "post", "comb")}
    table = encode(np.ones((2, 128)), "bf16")
    got = run("hyper_step_entry", **given, V=2, table=table, tokens=np.array([1, 2, -1], np.int32))
    assert np.array_equal(got.x_next[0], np.ones((4, 128)))
    assert np.isfinite(got.y[0]).all() and np.isnan(got.y[1:]).all()


def test_a_launch_leaves_its_ticket_for_the_next_one(run: Run) -> None:
    assert not run("hyper_step_open", **between(3)).ticket.any()


@pytest.mark.parametrize("mode", ["run", "shuffle", "check"])
@pytest.mark.parametrize(("rows", "width"), [(1, 128), (2, 384), (2, 1152)])
def test_cards_without_clusters_write_the_same_bytes(mode: str, rows: int, width: int) -> None:
    given = between(rows, width)
    assert same_without_clusters("hyper_step_open", mode=mode, **given)
    head = dict(fn=given["fn"][:4], scale=1.0, base=given["base"][:4], gain=given["gain"])
    rest = dict(T=rows, M=4, D=width, x=given["x"], ticket=0, **EPS)
    assert same_without_clusters("hyper_step_exit", mode=mode, **head, **rest)


def test_a_width_that_is_no_whole_group_is_refused(run: Run) -> None:
    with pytest.raises(SpecError, match="D/128 is 33/16, not whole"):
        run("hyper_step_open", **between(1, 256 + 8))


@pytest.mark.stress
def test_ten_thousand_launches_give_the_same_bytes() -> None:
    device, given = HostDevice(workers=2), between(2, 128)
    seen = {run_kernel("hyper_step_open", device, **given).y.tobytes() for _ in range(10_000)}
    assert len(seen) == 1

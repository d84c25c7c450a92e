"""The judge is judged: each planted fault must be caught and named.

A fake launcher writes the oracle's own bytes, so that nothing but the fault is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from dsv4 import registry
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import Launch
from lab.arrays import Guarded
from lab.cases import Case
from lab.oracles import reference
from lab.result import FAIL, PASS, CaseResult
from lab.run import RunOptions, run_case
from oracle.formats import encode

KERNEL = "cast_bf16"
CASE = Case("planted", N=1000)
TILE = 256


def perfect(launch: Launch, arrays: Mapping[str, Guarded]) -> None:
    """Write what the oracle says, without running any kernel."""
    inputs = {"x": arrays["x"].bits()}
    expected = reference(launch.spec, inputs, launch.shape)
    arrays["y"].array[...] = encode(expected["y"].value, "bf16")


def judged(fault: Callable[[Mapping[str, Guarded]], None], **options: object) -> CaseResult:
    """The verdict on the oracle's own bytes with one fault planted after each launch."""

    def launcher(launch: Launch, arrays: Mapping[str, Guarded]) -> None:
        perfect(launch, arrays)
        if arrays["y"].array.size == CASE.axes["N"]:  # not the single rows of the batch check
            fault(arrays)

    settings = RunOptions(time=False, launcher=launcher, **options)  # type: ignore[arg-type]
    return run_case(registry.spec(KERNEL), CASE, HostDevice(), settings)


def sentence(result: CaseResult) -> str:
    """Everything the judge says about a result, in one text."""
    patterns = [line for o in result.outputs for line in o.to_json().get("patterns", [])]
    return "\n".join([*result.reasons, *patterns, *(str(o.first) for o in result.outputs)])


def test_the_oracles_own_bytes_pass() -> None:
    result = judged(lambda arrays: None)
    assert result.verdict == PASS, result


def test_one_flipped_bit_is_caught_at_its_index() -> None:
    def flip(arrays: Mapping[str, Guarded]) -> None:
        arrays["y"].array[777] ^= 1

    result = judged(flip)
    assert result.verdict == FAIL
    assert result.outputs[0].identical == 999
    first = result.outputs[0].to_json()["first"]
    assert first["index"] == 777
    assert first["block"] == [3, 0, 0]


def test_a_wrong_last_tile_is_named() -> None:
    last = 3 * TILE

    def spoil(arrays: Mapping[str, Guarded]) -> None:
        arrays["y"].array[last:] ^= 3

    result = judged(spoil)
    assert result.verdict == FAIL
    assert "last" in sentence(result)
    assert result.outputs[0].to_json()["first"]["index"] == last


def test_a_stale_row_is_caught() -> None:
    def stale(arrays: Mapping[str, Guarded]) -> None:
        arrays["y"].array[512:768] = arrays["y"].array[256:512]

    result = judged(stale)
    assert result.verdict == FAIL
    assert result.outputs[0].to_json()["first"]["index"] >= 512


@pytest.mark.parametrize("relaunch", [2, 3, 4])
def test_an_unwritten_element_is_told_from_a_wrong_one(relaunch: int) -> None:
    calls: list[int] = []

    def launcher(launch: Launch, arrays: Mapping[str, Guarded]) -> None:
        calls.append(1)
        held = arrays["y"].array[500:501].copy()
        perfect(launch, arrays)
        arrays["y"].array[500:501] = held

    settings = RunOptions(time=False, launcher=launcher, relaunch=relaunch)
    result = run_case(registry.spec(KERNEL), CASE, HostDevice(), settings)
    assert result.verdict == FAIL
    assert result.outputs[0].unwritten == 1
    assert "never written" in sentence(result)


@pytest.mark.parametrize(("place", "word"), [("after", "after"), ("before", "before")])
def test_a_write_outside_the_output_is_caught_with_its_side(place: str, word: str) -> None:
    def overrun(arrays: Mapping[str, Guarded]) -> None:
        inside = arrays["y"].array
        step = inside.nbytes if place == "after" else -2
        outside = np.lib.stride_tricks.as_strided(inside, shape=(1,))
        address = outside.__array_interface__["data"][0] + step
        import ctypes

        ctypes.memset(address, 0x11, 2)

    result = judged(overrun)
    assert result.verdict == FAIL
    assert not result.guards_ok
    assert f"guard bytes {word} y changed" in sentence(result)


def test_a_changed_input_is_caught() -> None:
    def change(arrays: Mapping[str, Guarded]) -> None:
        arrays["x"].array[3] = 0.0

    result = judged(change)
    assert result.verdict == FAIL
    assert result.inputs_changed == ("x",)
    assert "input x was changed" in sentence(result)


def test_right_the_first_time_only_is_caught() -> None:
    calls: list[int] = []

    def later(arrays: Mapping[str, Guarded]) -> None:
        calls.append(1)
        if len(calls) > 1:
            arrays["y"].array[9] ^= 1

    result = judged(later)
    assert result.verdict == FAIL
    assert not result.relaunch_identical
    assert "gave different bytes" in sentence(result)


def test_a_row_that_depends_on_its_batch_is_caught() -> None:
    def depends(arrays: Mapping[str, Guarded]) -> None:
        if arrays["y"].array.size > 1:
            arrays["y"].array[0] ^= 0

        else:
            arrays["y"].array[0] ^= 1

    def launcher(launch: Launch, arrays: Mapping[str, Guarded]) -> None:
        perfect(launch, arrays)
        depends(arrays)

    settings = RunOptions(time=False, launcher=launcher)
    result = run_case(registry.spec(KERNEL), CASE, HostDevice(), settings)
    assert result.batch_identical is False
    assert result.verdict == FAIL

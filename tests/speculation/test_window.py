"""How many rows are verified (T18, T20-T23, refusals 10-13)."""

import math

import numpy as np
import pytest

from dsv4.speculation.switches import Switches
from dsv4.speculation.window import (
    WindowPolicy,
    ladder_step,
    parse_tau,
    slot_window,
    survival_window,
    window_cap,
)
from tests.speculation.refusing import refuses

LADDER = WindowPolicy()


def raws(*p: float) -> list[float]:
    return [math.log(x / (1 - x)) for x in p]


FALLING = raws(0.9, 0.8, *[0.9] * 5)


def tau(value: float) -> object:
    return pytest.approx(value, rel=1e-7)


def test_without_a_switch_the_checkpoint_decides() -> None:
    resolve = WindowPolicy.resolve_value
    assert resolve("", "", True, True) == WindowPolicy("confidence-slot", 0.5)
    found = resolve("", "0.35", True, True)
    assert (found.kind, found.tau) == ("confidence-slot", tau(0.35))
    with refuses("tau-syntax"):
        resolve("", "nan-ish", True, True)
    assert resolve("", "nan-ish", True, False) == LADDER
    assert resolve("", "", False, True) == LADDER
    assert resolve("ladder", "", True, True) == LADDER
    assert resolve("confidence", "0.35", True, False).tau == tau(0.35)
    with refuses("window-adapt"):
        resolve("confidence-slot", "", False, True)


def test_the_product_of_probabilities_ends_the_window() -> None:
    # 0.9, 0.72, 0.648, 0.5832, 0.52488, 0.47239
    assert [survival_window(FALLING, t, 8) for t in (0.5, 0.7, 0.05)] == [6, 3, 8]


def test_the_first_doubtful_slot_ends_the_window() -> None:
    assert slot_window(FALLING, 0.5, 8) == 8
    assert slot_window(raws(0.9, 0.9, 0.3, *[0.9] * 4), 0.5, 8) == 3
    assert slot_window(FALLING, 0.95, 8) == 2


@pytest.mark.parametrize("tau", [1e-6, 0.05, 0.3, 0.5, 0.97, 1 - 2.0**-22])
def test_slots_are_those_of_probabilities_in_float32(tau: float) -> None:
    t = np.float32(tau)
    middle = math.log(float(t) / (1 - float(t)))
    wide = np.linspace(-2, 2, 4001)
    scores = np.concatenate([middle + wide * s for s in (1, 1e-3, 1e-6, 1e-8)])
    for score in scores.astype(np.float32):
        p = np.float32(1) / (np.float32(1) + np.exp(-score))
        assert slot_window([float(score)], tau, 2, floor=1) == (1 if p < t else 2), score
    assert slot_window([math.inf, -math.inf], tau, 3, floor=1) == 2


@pytest.mark.parametrize("size", [survival_window, slot_window])
def test_one_draft_always_rides_and_the_cap_holds(size) -> None:  # type: ignore[no-untyped-def]
    assert size(raws(0.1, 0.1, 0.1), 0.5, 8) == 2
    assert size(raws(*[0.99] * 7), 0.5, 5) == 5
    assert size(raws(*[0.99] * 7), 0.5, 8) == 8
    assert size([], 0.5, 8) == 2
    assert size(raws(0.1), 0.5, 8, floor=1) == 1


def test_the_switch_alone() -> None:
    read = WindowPolicy.from_env_value
    assert read("", "", True) == read("ladder", "", True) == read("ladder", "", False) == LADDER
    assert read("confidence", "", True) == WindowPolicy("confidence", 0.5)
    assert read("confidence", "0.35", True).tau == tau(0.35)
    assert read("confidence-slot", "0.6", True).tau == tau(0.6)
    for value in ("confidence", "confidence-slot"):
        with refuses("window-adapt"):
            read(value, "", False)
    with refuses("window-unknown"):
        read("static", "", True)


@pytest.mark.parametrize("text", ["0", "1", "1.5", "-0.1", "nan", "inf"])
def test_a_threshold_lies_between_zero_and_one(text: str) -> None:
    with refuses("tau-range"):
        parse_tau(text)


@pytest.mark.parametrize("text", [" 0.5", "0_5", "0.5 ", "half", "."])
def test_a_threshold_is_a_plain_decimal(text: str) -> None:
    with refuses("tau-syntax"):
        parse_tau(text)


def test_the_ladder_offers_one_more_than_was_accepted() -> None:
    assert [ladder_step(m, 8) for m in (0, 1, 2, 5, 7)] == [3, 3, 4, 7, 8]
    assert ladder_step(0, 2) == 2  # three would be more than the cap


def test_the_cap_of_each_loop() -> None:
    assert window_cap(None, 8, 16) == 8
    assert window_cap(0, 8, 16) == 2
    assert window_cap(99, 8, 7) == 7


def test_a_number_that_is_none_leaves_the_window_to_the_loop() -> None:
    assert Switches.from_env({"DSV4_DFLASH_VERIFY_T": "many"}).verify_t is None
    assert Switches.from_env({"DSV4_DFLASH_VERIFY_T": "5"}).verify_t == 5


def test_an_unknown_value_of_a_switch_is_refused_by_name() -> None:
    with refuses("switch"):
        Switches.from_env({"DSV4_DSPARK_CKPT": "maybe"})
    with refuses("switch"):
        Switches.from_env({"DSV4_DSPARK_VERIFY_GRAPH": "yes"})


def test_switches_that_are_off_by_default_can_be_set() -> None:
    off = Switches.from_env({})
    assert not (off.verify_graph or off.tensor_cores or off.debug)
    found = Switches.from_env({"DSV4_DFLASH_FA": "", "DSV4_DSPARK_VERIFY_GRAPH": "1",
                               "DSV4_DFLASH_DEBUG": "1"})  # fmt: skip
    assert found.verify_graph and found.tensor_cores and found.debug

"""Cards that are to write into each other's memory: enabled once, refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4.errors import Refusal
from dsv4.runtime.hostdevice import HostDevice
from tests.runtime.lazy_streams import Cards, cards


class Said(Exception):
    """What CUDA answers when it will not."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def linked(made: Cards, answers: list[int], *, can: bool = True) -> list[tuple[int, int]]:
    """(from, to) of every enabling, which CUDA answers with these numbers, 0 for yes."""
    asked: list[tuple[int, int]] = []

    def enable(peer: int) -> None:
        asked.append((made.current, peer))
        if answer := answers.pop(0):
            raise Said(answer)

    runtime: Any = made.cuda.runtime
    runtime.CUDARuntimeError, runtime.deviceEnablePeerAccess = Said, enable
    runtime.deviceCanAccessPeer = lambda one, other: can
    for device in made.devices:
        device.name = "H200"
    return asked


def test_each_card_reaches_the_other_and_twice_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cards(monkeypatch) as made:
        asked = linked(made, [0, 704])
        one, other = made.devices
        one.reach(other)
        other.reach(one)
    assert asked == [(0, 1), (1, 0)]


def test_other_answers_of_cuda_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with cards(monkeypatch) as made:
        linked(made, [705])
        with pytest.raises(Said):
            made.devices[0].reach(made.devices[1])


def test_cards_without_a_link_and_devices_of_another_kind_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cards(monkeypatch) as made:
        asked = linked(made, [], can=False)
        one, other = made.devices
        for peer in (other, one, HostDevice()):
            with pytest.raises(Refusal, match="were to reach the memory of"):
                one.reach(peer)
        with pytest.raises(Refusal, match="devices of one backend"):
            HostDevice().reach(one)
    assert not asked
    HostDevice().reach(HostDevice())

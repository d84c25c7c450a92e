"""Copies of the CUDA backend: in the order they were asked for, and waiting for nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.lazy_streams import array, cards


def test_writes_keep_their_values_and_their_order_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cards(monkeypatch) as made:
        device, held, seen = made.devices[1], array([0, 0]), []
        for number in range(100):
            values = np.array([number, -number], np.int32)
            device.write(held, values)
            values[:] = 7  # the caller may use its array again at once
            made.streams[1].send(lambda: seen.append(held.tolist()))
        # So many are under way at most: what comes later waits for the slots of what was first.
        assert 0 < len(seen) < 100 and not made.streams[0].sent
        made.finish()
    assert seen == [[number, -number] for number in range(100)]


def test_a_fetch_is_of_its_time_and_waits_for_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cards(monkeypatch) as made:
        device, held, later = made.devices[0], array([1, 2, 3]), []
        device.write(held, np.array([4, 5, 6], np.int32))
        first = device.fetch(held)
        device.write(held, np.array([7, 8, 9], np.int32))
        second = device.fetch(held)
        made.streams[0].send(lambda: later.append(True))
        assert first().tolist() == [4, 5, 6] and held.tolist() == [4, 5, 6]
        assert second().tolist() == [7, 8, 9] and not later
        assert first().tolist() == [4, 5, 6]


def test_a_sender_overwrites_nothing_that_is_still_to_be_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cards(monkeypatch) as made:
        sender, receiver = made.devices
        source, arrived = array([0]), array([0])
        got = []
        for number in (1, 2, 3):
            sender.write(source, np.array([number], np.int32))
            receiver.receive(arrived, source, sender)
            made.streams[1].send(lambda: got.append(arrived.tolist()))
        # The sender's device goes as far as it can first.
        made.finish()
    assert got == [[1], [2], [3]]


def test_a_receiver_copies_what_the_sender_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with cards(monkeypatch) as made:
        sender, receiver = made.devices
        source, arrived = array([0]), array([0])
        sender.write(source, np.array([5], np.int32))
        receiver.receive(arrived, source, sender)
        made.streams[1].run_to(made.streams[1].sent)
    assert arrived.tolist() == [5]

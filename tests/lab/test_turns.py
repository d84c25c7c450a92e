"""Turns on a shared GPU: one holder at a time, given back when the holder fails."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4.runtime.hostdevice import HostDevice
from lab import turns
from lab.turns import turn


def gpu(calls: list[str]) -> Any:
    """As much of a CUDA device as a turn uses; it notes what is asked of it."""
    pool = SimpleNamespace(free_all_blocks=lambda: calls.append("free"))
    return SimpleNamespace(
        backend="cuda",
        index=0,
        synchronize=lambda: calls.append("synchronize"),
        xp=SimpleNamespace(
            cuda=SimpleNamespace(Device=lambda _: SimpleNamespace(pci_bus_id="0000:01:00.0")),
            get_default_memory_pool=lambda: pool,
        ),
    )


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of this test's own, so that a run on a real card is not waited for."""
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path))


def test_the_second_holder_waits_until_the_first_has_left() -> None:
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with turn(gpu([])):
            inside.set()
            leave.wait(30)
            order.append("first leaves")

    def second() -> None:
        inside.wait(30)
        threading.Timer(0.2, leave.set).start()
        with turn(gpu([])):
            order.append("second enters")

    threads = [threading.Thread(target=t) for t in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert order == ["first leaves", "second enters"]


def test_a_holder_that_fails_gives_its_turn_and_its_memory_back() -> None:
    calls: list[str] = []
    with pytest.raises(ValueError, match="planted"), turn(gpu(calls)):
        raise ValueError("planted")
    with turn(gpu(calls)):
        pass
    assert calls == ["free", "synchronize", "free"]


def test_host_workers_do_not_wait_for_each_other() -> None:
    with turn(HostDevice()), turn(HostDevice()):
        assert not list(Path(turns.tempfile.gettempdir()).iterdir())

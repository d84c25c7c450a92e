"""Several ranks in one process: in threads, on free ports, under a clock that races."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def racing_clock() -> Callable[[], float]:
    """A clock on which a second goes by whenever somebody looks."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def at_once(*ranks: Callable[[], Any]) -> Sequence[Any]:
    """What each gives, or raises, all running at the same time."""

    def caught(rank: Callable[[], Any]) -> Any:
        try:
            return rank()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(caught, ranks))


def free_port() -> int:
    """A port of this host that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])

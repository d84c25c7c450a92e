"""Made checkpoints of every layout, written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4.checkpoint.mint import plan_mint, write_checkpoint
from dsv4.runtime.hostdevice import HostDevice

Minted = Callable[[str], Path]


@pytest.fixture(scope="session")
def minted(tmp_path_factory: pytest.TempPathFactory) -> Minted:
    """The folder of a tiny checkpoint in a layout, in files of at most 3 MB. Do not change it."""
    made: dict[str, Path] = {}

    def folder(layout: str) -> Path:
        if layout not in made:
            made[layout] = tmp_path_factory.mktemp("minted") / layout
            plan = plan_mint("tiny", layout, seed=1)
            write_checkpoint(plan, made[layout], device=HostDevice(), shard_bytes=3_000_000)
        return made[layout]

    return folder

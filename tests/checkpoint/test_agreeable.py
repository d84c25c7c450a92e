"""Tensors of a minted language are changed on the device that holds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from dsv4.checkpoint.agreeable import is_changed, speak
from dsv4.checkpoint.mint import plan_mint
from dsv4.runtime.hostdevice import HostDevice
from tests.engine.engines import same_bytes


class Elsewhere(HostDevice):
    """A device that is not the current one: whoever works with arrays makes it so first."""

    entered = False

    @property
    def xp(self) -> object:  # type: ignore[override]
        assert self.entered, "an array's operator would run on another device"
        return np

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:  # type: ignore[override]
        self.entered = True
        yield
        self.entered = False


def test_a_language_is_made_where_its_tensors_lie() -> None:
    plan = plan_mint("tiny", "0731", seed=1, agreeing=0.8)
    names = [name for name in plan.entries if is_changed(plan, name)]
    assert any(n == "head.weight" for n in names) and len(names) > 3
    here, elsewhere = HostDevice(), Elsewhere()
    for name in names:
        made = plan.tensor(here, name)
        bare = np.array(made, copy=True)
        speak(plan, elsewhere, name, bare)
        again = np.array(made, copy=True)
        speak(plan, here, name, again)
        assert same_bytes(bare, again) and not elsewhere.entered

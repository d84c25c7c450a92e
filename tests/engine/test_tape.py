"""Which launches of a tape may begin early on what the launch before the one in front wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsv4.engine.joins import Joins
from dsv4.engine.tape import Tape
from dsv4.runtime.hostdevice import HostDevice
from dsv4.spec import F32, Exact, Geometry, In, Kernel, Out, Work, kernel


class Recording(HostDevice):
    """A host device that keeps which launches are dependent."""

    def __init__(self) -> None:
        super().__init__()
        self.dependent: list[bool] = []

    def bind(self, spec: Any, constants: Any, geometry: Any, values: Any) -> Any:
        self.dependent.append(geometry.dependent)
        return lambda: None


def product(*, passes_on: bool = False, reads_passed: tuple[str, ...] = ()) -> Kernel:
    """y = w * x, which reads w early."""
    return kernel(
        name="product", family="product", summary="", geometry=lambda s: Geometry(1, 32),
        args=[In("w", F32, "N"), In("x", F32, "N"), Out("y", F32, "N")],
        contract=dict(y=Exact("one product")), work=lambda s: Work(read=8 * s.N, write=4 * s.N),
        reads_early=("w",), starts_early=True, passes_on=passes_on, reads_passed=reads_passed,
    )  # fmt: skip


def vectors(count: int) -> list[np.ndarray]:
    return [np.zeros(32, np.float32) for _ in range(count)]


def last_is_dependent(tape: Tape) -> bool:
    device: Any = tape.device
    return bool(device.dependent[-1])


@pytest.fixture
def tape() -> Tape:
    return Tape(Recording(), keep=True, dependent=True)


PASSES, TAKES = product(passes_on=True), product(reads_passed=("x",))


def test_what_was_passed_on_is_read_at_once(tape: Tape) -> None:
    w, x, chosen, y = vectors(4)
    tape.launch(PASSES, w, x, out=chosen)
    tape.launch(TAKES, w, x, out=y)
    assert last_is_dependent(tape)


def test_what_the_launch_in_front_writes_is_waited_for(tape: Tape) -> None:
    w, x, y, z = vectors(4)
    tape.launch(PASSES, w, x, out=y)
    tape.launch(TAKES, w, y[:32], out=z)
    assert not last_is_dependent(tape)


def test_a_launch_that_passes_nothing_on_is_waited_for(tape: Tape) -> None:
    w, x, y, z = vectors(4)
    tape.launch(product(), w, x, out=y)
    tape.launch(TAKES, w, x, out=z)
    assert not last_is_dependent(tape)
    tape.launch(product(), w, z, out=y)
    assert last_is_dependent(tape)


def test_nothing_is_passed_on_where_something_else_stands_between(tape: Tape) -> None:
    w, x, y, z = vectors(4)
    tape.launch(TAKES, w, x, out=y)
    assert not last_is_dependent(tape)
    tape.launch(PASSES, w, x, out=y)
    tape.call("a look at values", lambda: None)
    tape.launch(TAKES, w, x, out=z)
    assert not last_is_dependent(tape)


@pytest.mark.parametrize("dependent", [False, True])
def test_joins_begin_early_where_the_others_do(dependent: bool) -> None:
    device = Recording()
    tape, part = Tape(device, keep=True, dependent=dependent), np.zeros((2, 8), np.float32)
    joins = Joins((device, device))
    joins.add(tape, 0, part, part.copy())
    logit, ids = np.zeros(2, np.float32), np.zeros(2, np.int32)
    joins.best(tape, 0, logit, ids, 4, ids.copy())
    assert device.dependent == [dependent] * 2

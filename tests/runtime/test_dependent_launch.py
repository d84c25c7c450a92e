"""Dependent launches: what may be touched before wait_for_previous, and who asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.errors import KernelFault, SpecError
from dsv4.runtime.host import build
from dsv4.runtime.hostdevice import HostDevice
from dsv4.runtime.launch import prepare
from dsv4.spec import F32, Exact, Geometry, In, Out, Work, kernel

SOURCE = Path(__file__).parent / "kernels" / "dependent.cu"


def launch(
    symbol: str, mode: str, steady: tuple[bool, ...] | None, passes_on: bool = False
) -> np.ndarray:
    """Run a kernel of the source on two blocks of 32."""
    w, x = np.full(32, 2, np.float32), np.arange(32, dtype=np.float32)
    y = np.zeros(32, np.float32)
    build(SOURCE, defines={}, mode=mode).launch(
        symbol, grid=(2 if symbol == "never_waits" else 1, 1, 1), block=(32, 1, 1),
        args=[w, x, y], steady=steady, passes_on=passes_on,
    )  # fmt: skip
    return y


@pytest.mark.parametrize("mode", ("run", "shuffle", "check"))
def test_weights_are_read_before_the_wait_and_the_rest_behind_it(mode: str) -> None:
    assert np.array_equal(launch("sound", mode, (True, False, False)), 2.0 * np.arange(32))


def test_weights_that_are_not_declared_steady_are_no_exception() -> None:
    with pytest.raises(KernelFault) as caught:
        launch("sound", "check", (False, False, False))
    assert caught.value.kind == "early-access"
    assert "argument 0" in str(caught.value)


@pytest.mark.parametrize("symbol", ("reads_early", "writes_early", "waits_in_one_thread"))
def test_an_access_before_the_wait_is_named_with_its_line(symbol: str) -> None:
    with pytest.raises(KernelFault, match="before wait_for_previous") as caught:
        launch(symbol, "check", (True, False, False))
    marked = f"// {symbol}"
    (line,) = (n for n, text in enumerate(SOURCE.read_text().splitlines(), 1) if marked in text)
    assert (caught.value.kind, caught.value.line) == ("early-access", line)


def test_a_block_that_never_waits_is_named() -> None:
    with pytest.raises(KernelFault, match="has called wait_for_previous") as caught:
        launch("never_waits", "check", (True, False, False))
    assert (caught.value.kind, caught.value.block) == ("early-end", (1, 0, 0))


@pytest.mark.parametrize("symbol", ("reads_early", "writes_early", "never_waits"))
def test_plain_launches_keep_none_of_these_rules(symbol: str) -> None:
    assert np.array_equal(launch(symbol, "check", None), 2.0 * np.arange(32))


def test_a_kernel_that_passes_on_starts_the_next_one_behind_its_wait() -> None:
    steady = (True, False, False)
    assert np.array_equal(launch("passes_on", "check", steady, True), 2.0 * np.arange(32))
    with pytest.raises(KernelFault, match="declared to pass on") as caught:
        launch("starts_next_early", "check", steady, True)
    (line,) = (
        n for n, text in enumerate(SOURCE.read_text().splitlines(), 1)
        if "// starts_next_early" in text
    )  # fmt: skip
    assert (caught.value.kind, caught.value.line) == ("early-start", line)


class Recording(HostDevice):
    """A host device that keeps the geometry of what would be launched."""

    def bind(self, spec: Any, constants: Any, geometry: Any, values: Any) -> Any:
        self.geometry = geometry
        return lambda: None


def sound(starts_early: bool, reads_early: tuple[str, ...] | None = ("w",)) -> Any:
    return kernel(
        name="sound", family="sound", summary="", geometry=lambda s: Geometry(1, 32),
        args=[In("w", F32, "N"), In("x", F32, "N"), Out("y", F32, "N")],
        contract=dict(y=Exact("one product")), work=lambda s: Work(read=8 * s.N, write=4 * s.N),
        reads_early=reads_early, starts_early=starts_early,
    ).spec  # fmt: skip


@pytest.mark.parametrize(("declared", "asked"), [(a, b) for a in (0, 1) for b in (0, 1)])
def test_a_launch_is_dependent_when_the_kernel_wins_and_the_caller_asks(
    declared: int, asked: int
) -> None:
    spec = sound(starts_early=bool(declared))
    device, x = Recording(), np.ones(32, np.float32)
    prepare(spec, x, x, out=np.empty_like(x), device=device, dependent=bool(asked))
    assert device.geometry.dependent == bool(declared and asked)


def test_no_kernel_starts_early_without_saying_what_it_reads() -> None:
    with pytest.raises(SpecError, match="starts_early without reads_early"):
        sound(starts_early=True, reads_early=None)


@pytest.mark.parametrize(
    ("grid", "early"), [((132, 1, 1), True), ((8, 66, 1), True), ((529, 1, 1), False)]
)
def test_a_launch_of_many_blocks_begins_in_its_turn(
    grid: tuple[int, int, int], early: bool
) -> None:
    pytest.importorskip("cupy")
    from dsv4.runtime import dependent

    geometry = Geometry(grid, 32, 0, dependent=True)
    assert dependent.pays(geometry, multiprocessors=132) == early

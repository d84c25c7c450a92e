"""What the layers compute on: some rows of one sequence, on one stage, and how to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dsv4.checkpoint.config import ModelConfig
from dsv4.engine.arms import VERIFY_ROWS, Arms
from dsv4.engine.tape import Tape, Workspace
from dsv4.engine.weights import Stage
from dsv4.kernels.schedule import schedule
from dsv4.spec import F32, I32, Format

Look = Callable[[str, Any], None]
"""Called with the name of an intermediate and its array, which later work overwrites."""


def look_at_nothing(name: str, array: Any) -> None:
    """The look that takes nothing."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where the rows lie for one compress ratio: i32 [T] each, as `dsv4.kernels.schedule` says."""

    positions: Any
    ring_rows: Any
    raw_rows: Any
    blocks: Any
    index_rows: Any
    store_rows: Any
    firsts: Any


_LISTS = tuple(f.name for f in fields(Schedule))


@dataclass(frozen=True, slots=True)
class Rows:
    """T rows at positions start.. of a sequence, on one stage.

    start: the first position when the host knows it, as in a prompt; None in a step, which runs at
    any position: then the device reads it from `control`. bound: a position that no row reaches;
    lists and scores have room for its blocks. library: products through the library's GEMM.
    look: sees intermediates; only where launches run at once. schedules, lists: what is the same
    in all layers of a ratio, made by the first of them.
    """

    config: ModelConfig
    arms: Arms
    stage: Stage
    tape: Tape
    workspace: Workspace
    rows: int
    start: int | None
    bound: int
    control: Any
    library: bool
    schedules: dict[int, Schedule]
    look: Look
    lists: dict[int, Any] = field(default_factory=dict)

    @property
    def smooth(self) -> bool:
        """Whether every quantiser and rounding is the identity."""
        return not self.arms.quantisers

    @property
    def few(self) -> bool:
        """Whether these are so few rows that one row's work must be spread over the device."""
        return self.start is None

    @property
    def fused(self) -> bool:
        """Whether launches do the work of several: for the rows of a step, under arms that can.

        Nobody may look at what such launches keep inside. "auto" fuses on a GPU, where it pays.
        """
        step = self.few and self.rows <= VERIFY_ROWS and not self.library
        pays = self.arms.fused == "on" or self.stage.device.backend == "cuda"
        return step and pays and self.arms.fusable and self.look is look_at_nothing

    @property
    def tokens(self) -> Any:
        """Token ids of the rows, i32 [T]."""
        return self.control[1 : 1 + self.rows]

    def buffer(self, name: str, *shape: int, fmt: Format = F32) -> Any:
        """A buffer [T, *shape]."""
        return self.workspace.rows_of(name, self.rows, *shape, fmt=fmt)

    def blocks_of(self, ratio: int) -> int:
        """How many blocks of a ratio could be complete at any of the rows."""
        return self.bound // ratio if ratio else 0

    def numbers(self, values: np.ndarray) -> Any:
        """Host integers as an i32 array; only where the host knows the positions."""
        return self.stage.device.to_device(np.ascontiguousarray(values, np.int32))

    def schedule(self, ratio: int, ring: int, raw: int) -> Schedule:
        """Where the rows lie in layers of that ratio; made once for all layers of the stage."""
        if ratio not in self.schedules:
            lists = {name: self.buffer(f"schedule {ratio} {name}", fmt=I32) for name in _LISTS}
            with self.phase("lists"):
                self.tape.launch(
                    schedule, self.control[:1], **lists, ring=ring, raw=raw, ratio=ratio, base=ring
                )
            self.schedules[ratio] = Schedule(**lists)
        return self.schedules[ratio]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Launches inside belong to that phase."""
        with self.tape.phase(name):
            yield

    @contextmanager
    def beside(self, number: int) -> Iterator[None]:
        """Launches inside are a branch, which uses nothing of the other branches around it.

        The library's products share one staged matrix, so with them everything is in order.
        """
        if self.library:
            yield
            return
        with self.tape.branch(number):
            yield

    def scalar_options(self) -> Mapping[str, int]:
        """Options of the key quantiser."""
        return {"clamp_only": int(self.arms.variant.value == "clamp-only")}

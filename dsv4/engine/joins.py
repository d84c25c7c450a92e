"""Where the ranks of a tensor-parallel model meet: sums of their parts, the best of their tokens.

On GPUs a join is a kernel on every card that writes stamped letters into the other cards' memory
and waits for theirs; it stands in the graph of its card like any other launch, and because stamps
count on, nothing is reset between replays. On the host, where a launch has ended before the next
one begins, nobody can wait: the ranks send first, each finding who has come before it, and once the
last one has come the others look again from where they stood.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dsv4.engine.arms import VERIFY_ROWS
from dsv4.engine.tape import Tape
from dsv4.errors import DeviceError, Refusal
from dsv4.kernels.join import THREADS, join_add, join_argmax, mailbox_letters, tiles_of
from dsv4.runtime.device import Device
from dsv4.spec import I32, I64, Kernel

# Blocks of 256 threads that a card runs at the same time in any case: four on each of 132
# multiprocessors, and fewer than that.
_MOST_BLOCKS: Final = 512
# Looks at letters before a peer counts as missing: many seconds on a GPU, and no wait on the host.
_SPINS: Final = {"cuda": 1 << 25, "host": 1}


@dataclass(frozen=True, slots=True)
class _Room:
    """Mailboxes of joins of one size: each rank's own, where the others' lie from there, turns."""

    boxes: tuple[Any, ...]
    offsets: tuple[Any, ...]
    states: tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Joins:
    """The joins of an engine whose ranks are these devices.

    All ranks make the same joins in the same order, so one room serves every join of its size.
    errors: of each rank, 1 + the highest peer that did not come; 0 otherwise.
    """

    devices: tuple[Device, ...]
    errors: tuple[Any, ...] = ()
    rooms: dict[tuple[int, int], _Room] = field(default_factory=dict)
    _early: list[tuple[int, _Room, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Give every rank its own error word."""
        self.errors = tuple(d.zeros((1,), I32) for d in self.devices)

    @property
    def in_turns(self) -> bool:
        """Whether no launch can wait for a later one, so that joins stand between the graphs."""
        return self.devices[0].backend == "host"

    def add(self, tape: Tape, rank: int, part: Any, out: Any) -> None:
        """out [T,D]: the parts [T,D] of all ranks added in float32, rank 0's first."""
        rows, width = (int(n) for n in part.shape)
        room = self._room(rows, width)
        self._launch(tape, rank, room, join_add, part[None], y=out[None])

    def best(self, tape: Tape, rank: int, logit: Any, ids: Any, share: int, out: Any) -> None:
        """out [T]: the token with the largest of all ranks' logits [T], ties to the lowest.

        ids [T]: places in the rank's `share` tokens.
        """
        room = self._room(int(ids.shape[0]), 2)
        self._launch(
            tape, rank, room, join_argmax, logit[None], ids[None], y=out[None], share=share
        )

    def checked(self, finish: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
        """`finish`, which fails when a rank waited in vain for what it gives.

        Errors: DeviceError naming both ranks; the mailboxes begin anew then.
        """
        told = [d.fetch(e) for d, e in zip(self.devices, self.errors, strict=True)]

        def look() -> np.ndarray:
            made = finish()
            for rank, error in enumerate(told):
                missing = int(error()[0])
                if missing:
                    self.reset()
                    raise DeviceError(
                        f"rank {rank} on {self.devices[rank].name} joined its part of a sum\n"
                        f"  the part of rank {missing - 1} did not come within"
                        f" {_SPINS[self.devices[rank].backend]} looks at its letters\n"
                        "  in dsv4.engine.joins\n"
                        "  prefill again; if it recurs, look at the link: nvidia-smi topo -m"
                    )
            return made

        return look

    def reset(self) -> None:
        """Forget what is under way: all mailboxes as new. Waits for the devices."""
        for device in self.devices:
            device.synchronize()
        self._early.clear()
        for room in self.rooms.values():
            for device, box, state in zip(self.devices, room.boxes, room.states, strict=True):
                device.write(box, np.zeros(box.shape, np.int64))
                device.write(state, np.zeros(state.shape, np.int32))
        for device, error in zip(self.devices, self.errors, strict=True):
            device.write(error, np.zeros(1, np.int32))
            device.synchronize()

    def _room(self, rows: int, width: int) -> _Room:
        key = (rows, width)
        if key not in self.rooms:
            self.rooms[key] = self._new_room(rows, width)
        return self.rooms[key]

    def _new_room(self, rows: int, width: int) -> _Room:
        count = len(self.devices)
        letters = mailbox_letters(count, rows, width)
        states = tuple(d.zeros((1, tiles_of(rows * width)), I32) for d in self.devices)
        if self.in_turns:
            # One array, so that check mode sees every address inside of what it was given.
            shared = self.devices[0].zeros((count * letters,), I64)
            places = letters * np.arange(count, dtype=np.int64)
            return _Room((shared,) * count, (places,) * count, states)
        boxes = tuple(d.zeros((letters,), I64) for d in self.devices)
        at = np.array([d.address(b) for d, b in zip(self.devices, boxes, strict=True)], np.int64)
        away = tuple(d.to_device((at - at[n]) // 8) for n, d in enumerate(self.devices))
        for device in self.devices:
            # Nobody may write into a mailbox that is still to be zeroed.
            device.synchronize()
        return _Room(boxes, away, states)

    def _launch(
        self, tape: Tape, rank: int, room: _Room, kernel: Kernel, *arrays: Any, **named: Any
    ) -> None:
        prepared = kernel.prepare(
            *arrays, room.boxes[rank], room.offsets[rank], room.states[rank], self.errors[rank],
            first=rank, spins=_SPINS[tape.device.backend], device=tape.device,
            dependent=tape.dependent, **named,
        )  # fmt: skip
        run = prepared.run
        if self.in_turns:
            run = self._turn(rank, room, prepared.run)
        tape.join(prepared, run, crossing=self.in_turns)

    def _turn(self, rank: int, room: _Room, launch: Callable[[], None]) -> Callable[[], None]:
        """A join on the host: complete once the last rank's has run."""

        def come() -> None:
            if rank == 0:
                self._early.clear()
            launch()
            if rank < len(self.devices) - 1:
                self._early.append((rank, room, launch))
                return
            for early, where, again in self._early:
                # As if it had not run: what it sent is there, and the same again.
                where.states[early][...] -= 1
                self.errors[early][0] = 0
                again()
            self._early.clear()

        return come


def windows(rows: int, width: int, most: int) -> Iterator[slice]:
    """The rows of each join that takes up to so many rows, out of buffers of `most`.

    Rows of a step are as many as they are. A prompt has pieces of any size: a join takes a power of
    two of rows, or all that the buffers have left, so that few rooms serve all. Rows do not meet,
    so more of them change nothing. And it takes no more blocks than a card runs at once, since a
    block holds its place until the peer's block of the same tile has come.
    """
    if rows <= VERIFY_ROWS:
        yield slice(0, rows)
        return
    largest = max(VERIFY_ROWS, 1 << ((_MOST_BLOCKS * 2 * THREADS // width) | 1).bit_length() - 1)
    for first in range(0, rows, largest):
        wanted = min(largest, 1 << (rows - first - 1).bit_length())
        yield slice(first, min(first + wanted, most))


def new_joins(devices: Sequence[Device]) -> Joins | None:
    """Joins of these ranks, each on a device that reaches the others; None for a single one.

    Errors: Refusal for devices that cannot reach each other, or launches that block.
    """
    if len(devices) == 1:
        return None
    if devices[0].backend == "cuda" and os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        raise Refusal(
            f"{len(devices)} ranks were to join on {devices[0].name}\n"
            "  under CUDA_LAUNCH_BLOCKING=1 a join would wait for one that is not sent yet\n"
            "  in the environment\n  unset it, or use DSV4_PARALLEL=layers"
        )
    for device in devices:
        for peer in devices:
            if peer is not device:
                device.reach(peer)
    return Joins(tuple(devices))

"""A sequence of launches, run at once or kept to be run many times.

Parts of it may be branches: what is asked for in one branch uses nothing that another one makes, so
a recorded step may run them side by side. Launches that follow wait for all branches before them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsv4.engine import phases
from dsv4.runtime.device import Device
from dsv4.runtime.launch import Launch
from dsv4.spec import Kernel


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses begin..end of an array, and whether it is written."""

    begin: int
    end: int
    written: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a step does. host: it looks at values on the host, so no graph can hold it.
    crossing: it moves what one device made to another one, so it stands between their graphs.
    join: all ranks have it at the same place of their order, and each waits for the others there.

    size_bytes: what it must read and write at least, by its kernel's declaration. branch: 0, or the
    number of a branch. touched: where its arrays lie, and which of them it writes.
    """

    name: str
    phase: str
    run: Callable[[], None]
    device: Device
    host: bool
    size_bytes: int
    branch: int = 0
    touched: tuple[Span, ...] = ()
    crossing: bool = False
    join: bool = False


@dataclass(slots=True)
class Tape:
    """Collects what the layers ask for.

    keep: entries are kept and run by `run`; otherwise each runs when it is asked for, and nothing
    is kept. dependent: kernels that can begin before the launch in front of them has ended do.
    """

    device: Device
    keep: bool
    profile: str = "off"
    dependent: bool = False
    entries: list[Entry] = field(default_factory=list)
    _phase: str = ""
    _branch: int = 0
    _before: Launch | None = None  # directly in front of what is asked for next

    def launch(self, kernel: Kernel, *arrays: Any, **named: Any) -> None:
        """A kernel on these arrays. Errors: LaunchError when they do not fit."""
        prepared = kernel.prepare(*arrays, device=self.device, dependent=self.dependent, **named)
        if prepared.geometry.dependent and not self._is_passed(prepared):
            prepared = kernel.prepare(*arrays, device=self.device, **named)
        self._before = prepared
        if not self.keep:
            prepared.run()
            return
        size, touched = self._counted(prepared)
        self._append(kernel.spec.name, prepared.run, size_bytes=size, touched=touched)

    def join(self, prepared: Launch, run: Callable[[], None], *, crossing: bool) -> None:
        """A launch that `run` sends, at which the ranks' tapes meet; only on tapes that keep.

        crossing: it stands between graphs, where a launch cannot wait for a later one.
        """
        assert self.keep, "a rank that sent its launches at once would wait for one not sent yet"
        size, touched = self._counted(prepared)
        self._take(
            prepared.spec.name, run, size_bytes=size, touched=touched, crossing=crossing, join=True
        )

    def gemm(self, w: Any, x: Any, out: Any) -> None:
        """The library's product out = x w^T."""
        size = w.nbytes + x.nbytes + out.nbytes
        touched = (self._span(w, False), self._span(x, False), self._span(out, True))
        run = lambda: self.device.gemm_bf16(w, x, out)  # noqa: E731
        self._take("gemm_bf16", run, size_bytes=size, touched=touched)

    def receive(self, array: Any, source: Any, sender: Device) -> None:
        """A copy from another stage, which crosses when that one has another device."""
        run = lambda: self.device.receive(array, source, sender)  # noqa: E731
        size = 2 * int(array.nbytes)
        self._take("receive", run, size_bytes=size, crossing=sender is not self.device)

    def cross(self, name: str, run: Callable[[], None], size_bytes: int) -> None:
        """What moves an array to or from another process."""
        self._take(name, run, size_bytes=size_bytes, crossing=True)

    def call(self, name: str, run: Callable[[], None]) -> None:
        """A function of the host, which may wait for the device."""
        self._take(name, run, host=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is asked for inside belongs to this phase."""
        before, self._phase = self._phase, name
        try:
            with phases.phase(name, self.device, profile="off" if self.keep else self.profile):
                yield
        finally:
            self._phase = before

    @contextlib.contextmanager
    def branch(self, number: int) -> Iterator[None]:
        """What is asked for inside is that branch, from 1 on; a branch has no branches."""
        assert number and not self._branch, "branches are numbered from 1 and do not nest"
        self._branch = number
        try:
            yield
        finally:
            self._branch = 0

    def record(self, beside: bool, entries: Sequence[Entry] | None = None) -> None:
        """Run what was kept inside a capture, which keeps branches side by side if asked to.

        entries: those of them that the capture is of, all when not given.
        """
        kept = self.entries if entries is None else entries
        if not beside:
            for entry in kept:
                entry.run()
            return
        for branched, some in itertools.groupby(kept, key=_is_branched):
            if not branched:
                for entry in some:
                    entry.run()
                continue
            branches: dict[int, list[Callable[[], None]]] = {}
            for entry in some:
                branches.setdefault(entry.branch, []).append(entry.run)
            self.device.run_beside(list(branches.values()))

    def run(self, entries: Sequence[Entry] | None = None) -> None:
        """Run what was kept, in order; or those of it."""
        kept = self.entries if entries is None else entries
        if self.profile == "off":
            for entry in kept:
                entry.run()
            return
        begin = 0
        while begin < len(kept):
            name, end = kept[begin].phase, begin
            # What waits for another rank that has not sent yet is not waited for here.
            profile = "off" if kept[begin].join else self.profile
            with phases.phase(name or "step", self.device, profile=profile):
                while end < len(kept) and kept[end].phase == name:
                    kept[end].run()
                    end += 1
            begin = end

    def _counted(self, prepared: Launch) -> tuple[int, tuple[Span, ...]]:
        """(bytes that a launch must move, where its arrays lie)."""
        spec = prepared.spec
        spans = tuple(self._span(prepared.arrays[a.name], a.role != "in") for a in spec.arrays)
        return spec.work(prepared.shape).size_bytes, spans

    def _is_passed(self, prepared: Launch) -> bool:
        """Whether what it reads at once is there: the launch before passes on, and writes none."""
        reads = prepared.spec.reads_passed
        if not reads:
            return True
        if self._before is None or not self._before.spec.passes_on:
            return False
        written = [span for span in self._counted(self._before)[1] if span.written]
        read = [self._span(prepared.arrays[name], False) for name in reads]
        return not any(_overlap(a, b) for a in written for b in read)

    def _span(self, array: Any, written: bool) -> Span:
        begin = self.device.address(array)
        last = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        return Span(begin, begin + last + int(array.itemsize), written)

    def _take(
        self,
        name: str,
        run: Callable[[], None],
        *,
        host: bool = False,
        size_bytes: int = 0,
        touched: tuple[Span, ...] = (),
        crossing: bool = False,
        join: bool = False,
    ) -> None:
        self._before = None
        self._append(
            name, run, host=host, size_bytes=size_bytes, touched=touched, crossing=crossing,
            join=join,
        )  # fmt: skip

    def _append(
        self,
        name: str,
        run: Callable[[], None],
        *,
        host: bool = False,
        size_bytes: int = 0,
        touched: tuple[Span, ...] = (),
        crossing: bool = False,
        join: bool = False,
    ) -> None:
        if self.keep:
            self.entries.append(
                Entry(
                    name, self._phase, run, self.device, host, size_bytes, self._branch, touched,
                    crossing, join,
                )
            )  # fmt: skip
        else:
            run()


def conflicts(entries: Sequence[Entry]) -> list[str]:
    """Pairs of launches in branches beside each other of which one writes what the other uses."""
    found = []
    for branched, some in itertools.groupby(entries, key=_is_branched):
        found += [
            f"{a.name} of branch {a.branch} and {b.name} of branch {b.branch}"
            for a, b in itertools.combinations(some if branched else (), 2)
            if a.branch != b.branch and _meet(a, b)
        ]
    return found


def _is_branched(entry: Entry) -> bool:
    return entry.branch > 0


def _meet(a: Entry, b: Entry) -> bool:
    """Whether two launches use an address that one of them writes."""
    if a.host or b.host:
        return True
    return any((x.written or y.written) and _overlap(x, y) for x in a.touched for y in b.touched)


def _overlap(a: Span, b: Span) -> bool:
    return a.begin < b.end and b.begin < a.end


@dataclass(slots=True)
class Workspace:
    """Buffers of up to `rows` rows by name, made when they are first asked for, then used again.

    Layers ask for the same names, so they share buffers; nothing in one outlives a layer unless
    its name says so.
    """

    device: Device
    rows: int
    buffers: dict[str, Any] = field(default_factory=dict)
    siblings: dict[int, Workspace] = field(default_factory=dict)

    def fixed(self, name: str, *shape: int, fmt: Any) -> Any:
        """A buffer whose size does not depend on rows."""
        key = f"{name} {fmt.name} {shape} fixed"
        if key not in self.buffers:
            self.buffers[key] = self.device.empty(shape, fmt)
        return self.buffers[key]

    def filled(self, name: str, value: int, *shape: int, fmt: Any) -> Any:
        """A buffer like `fixed` that starts as one number, for kernels that leave it so."""
        key = f"{name} {fmt.name} {shape} filled"
        if key not in self.buffers:
            self.buffers[key] = self.device.to_device(np.full(shape, value, fmt.storage))
        return self.buffers[key]

    def constant(self, name: str, values: np.ndarray) -> Any:
        """These values, for kernels that only read them; made once."""
        key = f"{name} {values.dtype} {values.tolist()} constant"
        if key not in self.buffers:
            self.buffers[key] = self.device.to_device(values)
        return self.buffers[key]

    def rows_of(self, name: str, rows: int, *shape: int, fmt: Any) -> Any:
        """The first rows of a buffer [rows, *shape]."""
        key = f"{name} {fmt.name} {shape}"
        if key not in self.buffers:
            self.buffers[key] = self.device.empty((self.rows, *shape), fmt)
        return self.buffers[key][:rows]

    def counting(self) -> Any:
        """The integers 0, 1, ... of all rows."""
        key = "counting"
        if key not in self.buffers:
            self.buffers[key] = self.device.to_device(np.arange(self.rows, dtype=np.int32))
        return self.buffers[key]

    def sibling(self, factor: int) -> Workspace:
        """A workspace of its own with `factor` times the rows, made once."""
        if factor not in self.siblings:
            self.siblings[factor] = Workspace(self.device, self.rows * factor)
        return self.siblings[factor]

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        own = sum(int(b.nbytes) for b in self.buffers.values())
        return own + sum(w.size_bytes for w in self.siblings.values())

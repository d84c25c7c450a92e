"""What a sequence leaves behind in the layers, and the object that owns it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dsv4.checkpoint.config import FINE_RATIO, ModelConfig
from dsv4.engine.tape import Workspace
from dsv4.errors import DeviceError, StateError
from dsv4.runtime.device import Device
from dsv4.spec import BF16, F32, I32, Format

StepWorkspace = Workspace
"""The buffers of a state's steps, for as many rows as one of its steps may have."""


@dataclass(frozen=True, slots=True)
class CompressorCache:
    """Raw projections of the last positions, [raw, c*w] by position modulo raw."""

    raw_kv: Any
    raw_score: Any


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's memory of a sequence.

    kvc [ring + cap, d]: rows of tokens by position modulo ring, then compressed rows by block. The
    ring is a window and a round of rows longer than the window, so a round that is not committed
    needs no undoing: its rows are written again before anything reads them. index_keys [cap, di]:
    the indexer's rows by block, in bf16 or f32 as the arms say.
    """

    ratio: int
    ring: int
    cap: int
    kvc: Any
    main: CompressorCache | None
    index_keys: Any
    index: CompressorCache | None

    @property
    def raw(self) -> int:
        """Rows of the raw rings; 1 where there are none."""
        return int(self.main.raw_kv.shape[0]) if self.main is not None else 1


@dataclass(slots=True)
class DecodeState:
    """One sequence: caches by layer, and how many tokens they have seen.

    engine: the only engine that may use it. caches: of all layers by number; of ranks, one after
    the other, which hold the same bytes. poisoned: why it may not be used any more. workspaces,
    programs: what its steps and rounds run, made once. control: on each stage, the position of a
    step's first row and the tokens of its rows. open_rows: of a round that is not committed.
    """

    engine: object
    caches: tuple[Mapping[int, LayerCache], ...]
    cache_bytes: tuple[int, ...]
    capacity: int
    pos: int = 0
    tokens: list[int] = field(default_factory=list)
    poisoned: str = ""
    round_rows: int = 0
    workspaces: tuple[StepWorkspace, ...] = ()
    control: tuple[Any, ...] = ()
    programs: dict[Any, Any] = field(default_factory=dict)
    open_rows: int = 0

    def check(self, engine: object, asked: str, *, in_round: bool = False) -> None:
        """Nothing, if the engine may use this state.

        in_round: also while a round is open. Errors: StateError.
        """
        if self.engine is not engine:
            raise StateError(
                f"{asked} was asked for on another engine's state\n"
                "  its caches belong to other weights\n  in dsv4.engine.state\n"
                "  use a state that this engine's alloc_decode_state() made"
            )
        if self.poisoned:
            raise StateError(
                f"{asked} was asked for on a state that a failed call left half-advanced\n"
                f"  it failed with: {self.poisoned}\n  at position {self.pos}\n"
                "  make a new state and prefill again"
            )
        if self.open_rows and not in_round:
            raise StateError(
                f"{asked} was asked for on a state with an open round\n"
                f"  {self.open_rows} rows at position {self.pos} wait for a verdict\n"
                "  in dsv4.engine.state\n  call commit_verify first"
            )


def begin_again(state: DecodeState) -> None:
    """Forget the sequence and keep the memory and what is bound; nothing reads what it left.

    Errors: StateError for a poisoned state, or one with an open round.
    """
    state.check(state.engine, "a new sequence")
    state.pos = 0
    state.tokens.clear()


class Poisonable(Protocol):
    """What a failed call leaves unusable, with the reason."""

    poisoned: str


@contextmanager
def poisoning(held: Poisonable) -> Iterator[None]:
    """Nothing may use what is held any more if what runs inside fails."""
    held.poisoned = "interrupted"
    try:
        yield
    except BaseException as error:
        held.poisoned = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    held.poisoned = ""


def raw_rows(ratio: int, rows: int) -> int:
    """Rows of a raw ring in which a round of `rows` never overwrites what its blocks pool."""
    return (2 if ratio == FINE_RATIO else 1) * ratio + rows


def new_layer_cache(
    device: Device,
    config: ModelConfig,
    ratio: int,
    max_seq: int,
    rows: int,
    index_format: Format = BF16,
) -> LayerCache:
    """The memory of one layer for sequences of max_seq positions, in rounds of up to `rows` rows.

    index_format: of the indexer's keys, as the arms have it.

    Every element is defined from the start, so that nothing read by mistake is ever random.
    Errors: DeviceError without memory for it.
    """
    try:
        return _new_layer_cache(device, config, ratio, max_seq, rows, index_format)
    except MemoryError as error:
        size = cache_bytes(config, ratio, max_seq, rows, index_format)
        raise DeviceError(
            f"a cache of {size} bytes was asked for, for {max_seq} positions\n"
            f"  {device.name} has {device.memory_bytes()[0]} bytes free ({error})\n"
            "  in dsv4.engine.state\n  let go of other states, or load with a smaller max_seq"
        ) from error


def _new_layer_cache(
    device: Device, config: ModelConfig, ratio: int, max_seq: int, rows: int, index_format: Format
) -> LayerCache:
    c, ring = config, config.window_size + rows
    cap = max(1, max_seq // ratio) if ratio else 0

    def zeros(*shape: int, fmt: Format = F32) -> Any:
        return device.zeros(shape, fmt)

    def raw(width: int) -> CompressorCache:
        channels = 2 * width if ratio == FINE_RATIO else width
        shape = (raw_rows(ratio, rows), channels)
        return CompressorCache(zeros(*shape), zeros(*shape))

    fine = ratio == FINE_RATIO
    return LayerCache(
        ratio=ratio,
        ring=ring,
        cap=cap,
        kvc=zeros(ring + cap, c.head_dim),
        main=raw(c.head_dim) if ratio else None,
        index_keys=zeros(cap, c.index_head_dim, fmt=index_format) if fine else None,
        index=raw(c.index_head_dim) if fine else None,
    )


def cache_bytes(
    config: ModelConfig, ratio: int, max_seq: int, rows: int, index_format: Format = BF16
) -> int:
    """Bytes of `new_layer_cache`, without making one."""
    c, cap = config, max(1, max_seq // ratio) if ratio else 0
    elements = (c.window_size + rows + cap) * c.head_dim
    if ratio:
        doubled = 2 if ratio == FINE_RATIO else 1
        elements += 2 * raw_rows(ratio, rows) * doubled * c.head_dim
    if ratio == FINE_RATIO:
        elements += 4 * raw_rows(ratio, rows) * c.index_head_dim
    keys = cap * c.index_head_dim if ratio == FINE_RATIO else 0
    return 4 * elements + index_format.size_bytes * keys


def index_rows(device: Device, keys: Any) -> np.ndarray:
    """A host copy of index keys in f32, which holds what they are in either format."""
    held = device.to_numpy(keys)
    if held.dtype == BF16.storage:
        held = (held.astype(np.uint32) << 16).view(np.float32)
    return held


def live_classes(
    device: Device, config: ModelConfig, layer: int, cache: LayerCache, pos: int
) -> list[tuple[str, np.ndarray]]:
    """Host copies of what a layer remembers of a sequence of `pos` tokens, by name.

    Places are those of a ring of one window and of pending rows of one block (and the one before,
    with overlap); what no position has filled is 0, or minus infinity for scores.
    """
    at, window = f"l{layer}.", config.window_size
    kvc = device.to_numpy(cache.kvc)
    recent = np.arange(max(0, pos - window), pos)
    ring = np.zeros((window, kvc.shape[1]), np.float32)
    ring[recent % window] = kvc[recent % cache.ring]
    found = [(f"{at}ring", ring)]
    for kind, part in (("cmp", cache.main), ("idx", cache.index)):
        if part is None:
            continue
        blocks = min(pos // cache.ratio, cache.cap)
        rows = kvc[cache.ring :] if kind == "cmp" else index_rows(device, cache.index_keys)
        found.append((f"{at}{kind}_store", rows[:blocks].copy()))
        for name, array, empty in (
            ("pend_kv", part.raw_kv, 0.0),
            ("pend_score", part.raw_score, -np.inf),
        ):
            pending = _pending(device.to_numpy(array), cache.ratio, pos, empty)
            found.append((f"{at}{kind}_{name}", pending))
    return found


def _pending(raw: np.ndarray, ratio: int, pos: int, empty: float) -> np.ndarray:
    halves = 2 if ratio == FINE_RATIO else 1
    first = (pos // ratio - (halves - 1)) * ratio
    pending = np.full((halves * ratio, raw.shape[1]), empty, np.float32)
    there = np.arange(max(0, first), pos)
    pending[there - first] = raw[there % len(raw)]
    return pending


def new_control(device: Device, rows: int) -> Any:
    """[1 + rows] integers: a step's first position, then its tokens."""
    return device.to_device(np.zeros(1 + rows, I32.storage))

"""What a Qwen target remembers of a sequence, and what a rollback needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsv4.targets.protocol import TapSink

if TYPE_CHECKING:
    from dsv4.targets.replayed import RoundGraph


@dataclass(slots=True)
class TargetCache:
    """Keys and values of full layers by layer; states of linear layers stacked, in two copies.

    A pass reads the states of `side` and writes the other, which then becomes `side`.
    dead: why the cache cannot go on.
    """

    max_ctx: int
    pos: int
    k: Mapping[int, Any]
    v: Mapping[int, Any]
    conv: tuple[Any, Any] | None
    recurrent: tuple[Any, Any] | None
    table: Any
    side: int = 0
    tap_sink: TapSink | None = None
    dead: str = ""
    graphs: dict[Any, RoundGraph] = field(default_factory=dict)


@dataclass(slots=True)
class TargetSnapshot:
    """The length, and copies of the stacked states."""

    pos: int
    conv: Any
    recurrent: Any

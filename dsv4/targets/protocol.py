"""What speculation asks of a target model, whatever it is and wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class TapSink:
    """Where a forward pass leaves the residual rows of tapped layers.

    Row r of the pass goes to buf[base + r], the s-th tapped layer to columns s * hidden on. A tap
    is the residual stream after that layer, not normed. t: rows of the buffer.
    """

    layer_ids: tuple[int, ...]
    buf: Any
    hidden: int
    t: int
    base: int = 0


@dataclass(frozen=True, slots=True)
class VerifyOut:
    """Either the choices of all rows or their logits, and a checkpoint where one was asked for.

    argmax: integers, on the device when the tokens came from there.
    """

    argmax: Any
    logits: Any
    ckpt: Any


class SpecTarget(Protocol):
    """A target. Caches have `pos`, `max_ctx` and `tap_sink`; None there taps nothing.

    Laws: a row of `verify` is, byte for byte, what decoding one token at a time gives; taps of
    committed rows do not depend on how many were verified; restore and verify of a prefix leaves
    the bytes that commit_prefix leaves.
    """

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab(self) -> int:
        """Rows of the head."""

    @property
    def n_layers(self) -> int:
        """Decoder layers."""

    @property
    def rollback_kind(self) -> str:
        """ "kv": cutting lengths rolls back; "hybrid": states must be restored."""

    @property
    def graphs(self) -> bool:
        """Whether its rounds can be recorded and replayed."""

    def new_cache(self, max_ctx: int) -> Any:
        """An empty cache for that many positions."""

    def tap_buffer(self, rows: int, width: int) -> Any:
        """An array for taps, [rows, width]."""

    def embed(self, ids: Sequence[int]) -> Any:
        """Embedding rows, not scaled. [T,D]."""

    def head(self, rows: Any) -> Any:
        """Logits of rows that need no further norm. [T,V]."""

    def prime(self, ids: Sequence[int], cache: Any) -> Any:
        """Logits of the last prompt position, [V]; fills the taps of all of them."""

    def verify(
        self,
        ids: Any,
        start: int,
        cache: Any,
        *,
        want: str = "argmax",
        ckpt: bool = False,
        graph: bool = False,
    ) -> VerifyOut:
        """What the target says after each token; ids are numbers, or an array of its device.

        graph: as a recorded round, where there are such, with the same bytes.
        """

    def snapshot(self, cache: Any) -> Any:
        """What a rollback needs, copied."""

    def refresh_snapshot(self, cache: Any, snap: Any) -> None:
        """The snapshot's arrays filled again from the cache."""

    def restore(self, cache: Any, snap: Any) -> None:
        """The cache as it was at the snapshot, which stays usable."""

    def commit_prefix(self, cache: Any, snap: Any, ckpt: Any, keep: int) -> None:
        """Only the first `keep` rows of the last verify stay, 0 < keep < rows."""

    def state_bytes(self, cache: Any) -> dict[str, bytes]:
        """Position and recurrent states, for comparing two ways to the same place."""

    def synchronize(self) -> None:
        """Wait for everything launched so far."""

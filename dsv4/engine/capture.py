"""What a forward pass hands out beside its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dsv4.engine.rows import Look, Rows
from dsv4.engine.state import LayerCache, index_rows

Arrays = dict[int, np.ndarray]
# Names of `Rows.look` to fields of a capture.
_FIELDS: Final[Mapping[str, str]] = {
    "attn_norm": "x_dbg",
    "q": "q_dbg",
    "kv": "kv_dbg",
    "o": "o_dbg",
    "attn": "attn_out",
    "ffn_norm": "moe_x",
    "ffn": "moe_out",
    "layer": "layer_out",
    "index_score": "index_score",
}


@dataclass(frozen=True, slots=True)
class ForwardOut:
    """logits: the last row, on the host. h_last [T,M,D]: the streams after the last layer, on the
    last stage; of all rows, or of the last one alone when not all were to be kept.
    """

    logits: np.ndarray
    h_last: Any


@dataclass(slots=True)
class Capture:
    """Host copies of intermediates, by layer, for the layers in `want` (all when it is None).

    embed_out: the entry streams. layer_out, attn_out, moe_out: outputs of a layer and of its two
    sub-blocks. x_dbg, moe_x: their normalised inputs. q_dbg, kv_dbg: rotated queries and cached
    rows. o_dbg: heads before they are turned back. compressor_kv, indexer_kv: all complete blocks.
    index_score: of all complete blocks, minus infinity for those that a row does not see.
    """

    want: Collection[int] | None = None
    embed_out: np.ndarray | None = None
    layer_out: Arrays = field(default_factory=dict)
    attn_out: Arrays = field(default_factory=dict)
    moe_out: Arrays = field(default_factory=dict)
    x_dbg: Arrays = field(default_factory=dict)
    moe_x: Arrays = field(default_factory=dict)
    q_dbg: Arrays = field(default_factory=dict)
    kv_dbg: Arrays = field(default_factory=dict)
    o_dbg: Arrays = field(default_factory=dict)
    compressor_kv: Arrays = field(default_factory=dict)
    indexer_kv: Arrays = field(default_factory=dict)
    index_score: Arrays = field(default_factory=dict)

    def wants(self, layer: int) -> bool:
        """Whether a layer's intermediates are kept."""
        return self.want is None or layer in self.want

    def look(self, run: Rows, layer: int) -> Look:
        """A look that keeps a layer's intermediates, appended to those of earlier rows."""
        device = run.stage.device

        def take(name: str, array: Any) -> None:
            if name == "embed_out":
                rows = device.to_numpy(array)
                before = self.embed_out
                self.embed_out = rows if before is None else np.concatenate([before, rows])
            elif name in _FIELDS and self.wants(layer):
                held: Arrays = getattr(self, _FIELDS[name])
                rows = device.to_numpy(array)
                held[layer] = rows if layer not in held else _joined(held[layer], rows)

        def keep(name: str, array: Any) -> None:
            run.tape.call("look", lambda: take(name, array))

        return keep

    def keep_blocks(self, run: Rows, layer: int, cache: LayerCache, positions: int) -> None:
        """Take the compressed rows and index keys of a sequence of that many positions."""
        if not self.wants(layer) or not cache.ratio:
            return
        device, blocks = run.stage.device, min(positions // cache.ratio, cache.cap)
        store = cache.kvc[cache.ring : cache.ring + blocks]

        def take() -> None:
            self.compressor_kv[layer] = device.to_numpy(store)
            if cache.index_keys is not None:
                self.indexer_kv[layer] = index_rows(device, cache.index_keys[:blocks])
                if layer in self.index_score:
                    self.index_score[layer] = self.index_score[layer][:, :blocks]

        run.tape.call("look", take)


def _joined(before: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows after earlier ones; scores of fewer blocks are filled up with minus infinity."""
    if before.ndim == 2 and before.shape[1] != rows.shape[1]:
        wider = np.full((len(before), rows.shape[1]), -np.inf, before.dtype)
        wider[:, : before.shape[1]] = before
        before = wider
    return np.concatenate([before, rows])

"""Which keys a block's rows see, and the attention kernel that walks them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.drafters.config import DraftConfig
from dsv4.kernels.sdpa import sdpa_clip, sdpa_full, sdpa_scan
from dsv4.kernels.sdpa_bf16 import sdpa_bf16
from dsv4.targets.layers import Ops


def visible_range(
    config: DraftConfig, rule: str, layer: int, start: int, rows: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """First and last (exclusive) key of every row of a block behind `start` context rows.

    None as first: from the beginning. DFlash2 layers see a window before each row and the whole
    block behind it. Sliding layers of other drafters see everything under the rule "seed", and the
    newest `window` positions up to their own under "causal_swa".
    """
    own, end = np.arange(start, start + rows), np.full(rows, start + rows)
    window = config.sliding_window
    if not config.layer_sliding[layer] or window is None:
        return None, end
    if config.is_dflash2:
        return np.maximum(own - window + 1, 0), end
    if rule == "causal_swa":
        return np.maximum(own - window + 1, 0), own + 1
    return None, end


def windowed(
    ops: Ops,
    q: Any,
    k: Any,
    v: Any,
    first: np.ndarray | None,
    last: np.ndarray,
    *,
    clip: bool,
    tensor_cores: bool = False,
) -> Any:
    """Attention of q [T,H,K] over keys [N,G,K]; clip walks only the windows, to the same bytes.

    tensor_cores: in bf16 where there is no window, so that all rows see the same keys.
    """
    out, scale = ops.empty(*q.shape), q.shape[-1] ** -0.5
    if first is None and tensor_cores:
        ops.run(sdpa_bf16, q, k, v, out=out, last=int(last[0]), scale=scale)
    elif first is None:
        ops.run(sdpa_full, q, k, v, ops.ints(last), out=out, scale=scale)
    else:
        kernel = sdpa_clip if clip else sdpa_scan
        ops.run(kernel, q, k, v, ops.ints(first), ops.ints(last), out=out, scale=scale)
    return out

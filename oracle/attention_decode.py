"""Sink attention of a few rows, from unnormalised queries to what is projected back."""

import numpy as np
import numpy.typing as npt

from oracle.attention import bounded_attention, present
from oracle.attention_sums import chunk_sums
from oracle.bounded import Bounded
from oracle.formats import Floats
from oracle.rms_norm import rms_norm_head
from oracle.rope import rope


def attention_decode(
    q: Floats,
    kv: Floats,
    ids: npt.NDArray[np.int64],
    sink: Floats,
    table: Floats,
    positions: npt.NDArray[np.int64],
    ticket: npt.NDArray[np.int64],
    scale: float,
    eps: float,
) -> dict[str, Bounded | npt.NDArray[np.int64]]:
    """Every head normalised and rotated, its sink attention, and that rotated back.

    Shapes: q [T,H,K], kv [N,K], ids [T,S], sink [H], table [P,R], positions [T], ticket -> o
    [T,H,K]; power, total [T,B,H] and value [T,B,H,K] as `chunk_sums` defines them; ticket at 0.
    Rounds: nothing; o is encoded as bf16 by the comparator.
    Magnitude: a rotated lane's error is relative to |a cos| + |b sin|, on the way in, where it
    takes the place of |q| in a logit's magnitude, and on the way back, where it carries the
    attention's magnitudes along and adds its own.
    """
    normed = rms_norm_head(q, eps=eps)
    turned = rope(normed, table, positions, inverse=0)
    sizes = np.maximum(np.abs(turned.value), turned.magnitude)
    attended = bounded_attention(turned.value, kv, ids, sink, scale, "f32", sizes=sizes)
    back = rope(attended.value, table, positions, inverse=1)
    carried = _carried(attended.magnitude, table, positions)
    return {
        "o": Bounded(back.value, carried + back.magnitude),
        **chunk_sums(turned.value, kv, present(ids, kv), scale, "f32", sizes),
        "ticket": np.zeros_like(ticket),
    }


def _carried(sizes: Floats, table: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """How far errors of that size reach after a rotation: |a cos| + |b sin|."""
    reach = rope(sizes, table, positions, inverse=0).magnitude
    fixed = slice(0, sizes.shape[-1] - table.shape[1])
    reach[..., fixed] = sizes[..., fixed]
    return reach

"""The largest scores through torch.topk: sorted, with ties as they fall."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsv4.axes import Shape
from lab.oracles import Reference
from lab.rivals import Candidate, Inputs, Prepared, Rival
from lab.rivals.tensors import as_f32, size_of


def _visible_only(inputs: Inputs, s: Shape) -> np.ndarray:
    """Scores with minus infinity where a row sees nothing, so that no mask is timed."""
    hidden = np.arange(s.N)[None, :] >= np.clip(inputs["visible"], 0, s.N)[:, None]
    return np.where(hidden, -np.inf, inputs["score"]).astype(np.float32)


def _as_is(inputs: Inputs, s: Shape) -> dict[str, np.ndarray]:
    return dict(inputs)


def _topk(torch: Any, device: str, inputs: Inputs, s: Shape) -> list[Candidate]:
    scores, places = _visible_only(inputs, s), min(int(s.S), int(s.N))

    def make() -> Prepared:
        score = as_f32(torch, device, scores)
        values = torch.empty((s.T, places), dtype=torch.float32, device=device)
        ids = torch.empty((s.T, places), dtype=torch.int64, device=device)

        def run() -> None:
            torch.topk(score, places, dim=1, out=(values, ids))

        size = size_of(score, values, ids)
        return Prepared(run, lambda: np.asarray(ids.cpu().numpy()), size, size)

    return [Candidate("sorted, over the visible scores", make)]


def wrong_selection(got: np.ndarray, wanted: Reference, inputs: Inputs, s: Shape) -> str:
    """Whether the same scores were picked in the same order: ids of tied scores may differ.

    Places behind the visible scores are not looked at; ours are -1 there.
    """
    scores = _visible_only(inputs, s)
    for row in range(int(s.T)):
        ours = wanted.value[row][: got.shape[1]]
        count = int((ours >= 0).sum())
        picked = got[row][:count]
        if len(set(picked.tolist())) != count:
            return f"row {row} picks an index twice"
        if not np.array_equal(scores[row][picked], scores[row][ours[:count] - int(s.offset)]):
            return f"row {row} picks other scores than the oracle"
    return ""


RIVALS = (
    Rival(
        name="torch.topk",
        kernels=("topk",),
        output="ids",
        needs=("torch",),
        note="hidden scores masked before the timing; ties in any order; int64 indices and values",
        sees=_as_is,
        candidates=_topk,
        wrong=wrong_selection,
    ),
)

"""The confidence head: how surely a draft is accepted when those before it are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsv4.speculation.refusals import refuse


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """Weights w [H] or [H+R], a bias, and whether the token's row of the bias table is an input."""

    w: np.ndarray
    b: float
    with_markov: bool

    def raw_score(self, hidden: np.ndarray, previous: np.ndarray | None = None) -> float:
        """The score before the sigmoid for one slot. Rounds: float32 sums in ascending order.

        Errors: DrafterRefusal when the inputs are not the ones the head was trained with.
        """
        parts = [hidden] if previous is None or not self.with_markov else [hidden, previous]
        if self.with_markov and previous is None:
            raise refuse(
                "confidence-input",
                "a confidence score",
                "no row of the token table",
                "pass the row of the token before the slot",
            )
        inputs = np.concatenate([np.asarray(p, np.float32).reshape(-1) for p in parts])
        if len(inputs) != len(self.w):
            raise refuse(
                "confidence-input",
                "a confidence score",
                f"{len(inputs)} inputs for {len(self.w)} weights",
                "pass the rows that the head was trained with",
            )
        products = self.w.astype(np.float32) * inputs
        return float(np.float32(self.b) + products.cumsum(dtype=np.float32)[-1])

"""What a block computes under: the configuration, a law, and the rope tables; and its operators."""

from dataclasses import dataclass

import numpy as np

from oracle.config import ModelConfig
from oracle.laws import Law
from oracle.rms_norm import rms_norm
from oracle.rope import frequencies, rope, table_row
from oracle.weights import Matrix


@dataclass(frozen=True, slots=True)
class Conditions:
    """A configuration and a law, with a table of (cos, sin) pairs for each kind of layer.

    Shapes: tables [P,R]; positions of a model lie in 0..P-1.
    """

    config: ModelConfig
    law: Law
    window_table: np.ndarray
    compressed_table: np.ndarray

    def linear(self, x: np.ndarray, w: Matrix) -> np.ndarray:
        """x times a matrix, its input and result rounded as the law has it for that kind.

        Shapes: x [..,K], w [N,K] -> [..,N]; a grouped matrix takes x [T,G,K], w [G,N,K].
        """
        if w.kind == "island":
            return np.asarray(x @ w.values.T)
        if w.kind == "bf16":
            x = self.law.product_input(x)
            grouped = w.values.ndim == 3
            y = np.einsum("tgk,gnk->tgn", x, w.values) if grouped else x @ w.values.T
            return self.law.rounded(y)
        x = self.law.dense_input(x) if w.kind == "fp8" else self.law.expert_input(x)
        if self.law.single and self.law.dense_codes:
            return self.law.rounded(_promoted(x, w))
        return self.law.rounded(x @ w.values.T)

    def norm(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """x over the root of its mean square, times the gain, as an activation."""
        return self.law.rounded(rms_norm(x, gain, eps=self.config.norm_eps))

    def head_norm(self, q: np.ndarray) -> np.ndarray:
        """Every head over the root of its mean square; a chain of bf16 operators under REF."""
        b = self.law.rounded
        mean = b(np.mean(b(q * q), axis=-1, keepdims=True))
        return b(q * b(1.0 / np.sqrt(b(mean + self.config.norm_eps))))

    def rotate(
        self, x: np.ndarray, positions: np.ndarray, ratio: int, *, inverse: bool = False
    ) -> np.ndarray:
        """x with the last lanes rotated by the angles of the positions.

        Shapes: x [T,K] or [T,H,K].  A layer's ratio picks its table, for everything it rotates.
        """
        table = self.compressed_table if ratio else self.window_table
        heads = x if x.ndim == 3 else x[:, None, :]
        turned = rope(heads, table, positions, inverse=int(inverse)).value
        return self.law.rounded(turned.reshape(x.shape))


def conditions(config: ModelConfig, law: Law, positions: int) -> Conditions:
    """The conditions for sequences whose positions lie below `positions`.

    Source: rope_theta turns window-only layers; all others turn by compress_rope_theta, slowed as
    rope_scaling says.
    """
    width = config.rope_head_dim
    plain = frequencies(width, config.rope_theta)
    slowed = frequencies(
        width,
        config.compress_rope_theta,
        original=config.original_seq_len,
        factor=config.rope_factor,
        beta_fast=config.beta_fast,
        beta_slow=config.beta_slow,
    )
    tables = [
        np.asarray([table_row(p, speeds) for p in range(positions)], law.real)
        for speeds in (plain, slowed)
    ]
    return Conditions(config, law, *tables)


def _promoted(x: np.ndarray, w: Matrix) -> np.ndarray:
    """x times w, one group of columns at a time into one accumulator: the reference's order."""
    y = np.zeros((*x.shape[:-1], len(w.values)), x.dtype)
    for start in range(0, x.shape[-1], w.group):
        columns = slice(start, start + w.group)
        y += x[..., columns] @ w.values[:, columns].T
    return y

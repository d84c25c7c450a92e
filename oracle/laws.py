"""Numeric laws: which rounding points of the model are real, and in which precision it runs.

A quantiser is a staircase, so two right implementations that add in another order drift apart by
whole steps. Structure is therefore compared with every step switched off, and steps on identical
inputs. Weights decode exactly under every law.
"""

from dataclasses import dataclass

import numpy as np

from oracle.formats import round_to
from oracle.quantisers import fake_quantise_fp4, fake_quantise_fp8

LINEAR_GROUP = 128
KV_GROUP = 64
INDEX_GROUP = 32


@dataclass(frozen=True, slots=True)
class Law:
    """One choice of rounding points.

    single: accumulate and keep numbers in float32, products in the reference's blocks of K, and
    attention in its tiles with bf16 weights. activations: every activation between operators is
    bf16. product_inputs: inputs of products with stored weights are bf16, islands excepted.
    dense_codes: inputs of FP8-weight products are FP8 per 128; expert_codes: those of FP4 ones.
    kv_codes: KV lanes that do not rotate are FP8 per 64. index_codes: indexer queries and keys
    are FP4 per 32.
    """

    name: str
    single: bool = False
    activations: bool = False
    product_inputs: bool = False
    dense_codes: bool = False
    expert_codes: bool = False
    kv_codes: bool = False
    index_codes: bool = False

    @property
    def real(self) -> type[np.floating]:
        """The NumPy type in which the model runs."""
        return np.float32 if self.single else np.float64

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """x as an activation between two operators: bf16 under REF and DEQ."""
        return _bf16(x) if self.activations else x

    def product_input(self, x: np.ndarray) -> np.ndarray:
        """x as the input of a product with a bf16 matrix that is no float32 island."""
        return _bf16(x) if self.product_inputs else x

    def dense_input(self, x: np.ndarray) -> np.ndarray:
        """x as the input of a product with an FP8 matrix: bf16, or FP8 per 128, or as it is."""
        x = self.product_input(x)
        return _like(fake_quantise_fp8(x, LINEAR_GROUP), x) if self.dense_codes else x

    def expert_input(self, x: np.ndarray) -> np.ndarray:
        """x as the input of a product with an FP4 matrix; codes are taken from x unrounded."""
        if self.expert_codes:
            return _like(fake_quantise_fp8(x, LINEAR_GROUP), x)
        return self.product_input(x)

    def kv_lanes(self, x: np.ndarray, rotated: int) -> np.ndarray:
        """KV rows with all but the last `rotated` lanes put through FP8 per 64."""
        if not self.kv_codes:
            return x
        y = x.copy()
        y[..., :-rotated] = fake_quantise_fp8(x[..., :-rotated], KV_GROUP)
        return y

    def index_lanes(self, x: np.ndarray) -> np.ndarray:
        """Indexer queries or keys through FP4 per 32, all lanes."""
        return _like(fake_quantise_fp4(x, INDEX_GROUP), x) if self.index_codes else x


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law(
            "ref",
            single=True,
            activations=True,
            dense_codes=True,
            expert_codes=True,
            kv_codes=True,
            index_codes=True,
        ),
        Law("exact", dense_codes=True, expert_codes=True, kv_codes=True, index_codes=True),
        Law("deq", single=True, activations=True, kv_codes=True, index_codes=True),
        Law("deq64", kv_codes=True, index_codes=True),
        Law("smooth"),
        Law("engine", product_inputs=True, expert_codes=True, kv_codes=True, index_codes=True),
    )
}
"""REF is what the published stack computes, EXACT its float64 twin; DEQ leaves the inputs of
products in bf16, DEQ64 its twin; SMOOTH has no steps at all; ENGINE has exactly the roundings that
the engine prescribes on its device path: streams unrounded, bf16 inputs of FP8 products, FP8 inputs
of FP4 ones. Other arms of the engine are `dataclasses.replace` away."""


def _bf16(x: np.ndarray) -> np.ndarray:
    return _like(round_to(x, "bf16"), x)


def _like(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return y.astype(x.dtype, copy=False)

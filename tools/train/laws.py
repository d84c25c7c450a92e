"""Which roundings of the engine a run of the torch model makes, and in which precision it runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tools.train import rounding


@dataclass(frozen=True, slots=True)
class Law:
    """One choice of precision and rounding points, named after `oracle.laws`.

    real: the type of streams, norms and islands. compute: the type in which products with stored
    matrices and attention run. weights: matrices go through the codes they are exported in.
    product_inputs: inputs of those products are bf16. expert_codes: inputs of routed experts are
    FP8 per 128. kv_codes: KV lanes that do not rotate are FP8 per 64. index_codes: indexer queries
    and keys are FP4 per 32. Every rounding passes its gradient straight through.
    """

    name: str
    real: torch.dtype
    compute: torch.dtype
    weights: bool = False
    product_inputs: bool = False
    expert_codes: bool = False
    kv_codes: bool = False
    index_codes: bool = False

    def product_input(self, x: torch.Tensor) -> torch.Tensor:
        """x as the input of a product with an FP8 or bf16 matrix that is no island."""
        return rounding.through(x, rounding.to_bf16) if self.product_inputs else x

    def expert_input(self, x: torch.Tensor) -> torch.Tensor:
        """x as the input of a product with an FP4 matrix; codes are taken from x unrounded."""
        if self.expert_codes:
            return rounding.through(x, rounding.fp8_groups, 128)
        return self.product_input(x)

    def kv_lanes(self, x: torch.Tensor, rotated: int) -> torch.Tensor:
        """KV rows with all but the last `rotated` lanes put through FP8 per 64."""
        if not self.kv_codes:
            return x
        still, turned = x[..., :-rotated], x[..., -rotated:]
        return torch.cat([rounding.through(still, rounding.fp8_groups, 64), turned], dim=-1)

    def index_lanes(self, x: torch.Tensor) -> torch.Tensor:
        """Indexer queries or keys through FP4 per 32, all lanes."""
        return rounding.through(x, rounding.fp4_groups, 32) if self.index_codes else x


def smooth(real: torch.dtype, compute: torch.dtype | None = None) -> Law:
    """No rounding at all but that of the types."""
    return Law("smooth", real, compute or real)


def engine(real: torch.dtype, compute: torch.dtype | None = None) -> Law:
    """The roundings that the engine prescribes; those of weights too, which stored ones pass."""
    return Law("engine", real, compute or real, True, True, True, True, True)

"""The optimiser: matrices step along orthogonalised momenta (Muon), everything else by Adam."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dsv4.checkpoint.config import ModelConfig

# Matrices between activations. Tables of tokens, routers, mixers and vectors are no such thing.
_MATRIX = re.compile(r".*\.(wq_a|wq_b|wkv|wgate|wo_a|wo_b|w1|w2|w3|main_proj)")
_MOMENTUM = 0.95
_BETAS = (0.9, 0.98)
_EPSILON = 1e-8
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_COLUMNS = 64


@dataclass(slots=True)
class Optimiser:
    """The trained weights, and what the two rules remember of their gradients.

    steps: how many steps were taken. groups: rows of `wo_a` belong to output groups of their own.
    """

    weights: Mapping[str, torch.Tensor]
    groups: int
    steps: int = 0
    first: dict[str, torch.Tensor] = field(default_factory=dict)
    second: dict[str, torch.Tensor] = field(default_factory=dict)

    def step(self, rate: float, plain_rate: float, decay: float) -> None:
        """Change every weight that has a gradient, and forget the gradients.

        rate: of matrices, each row-normalised step being about 1. plain_rate: of the others.
        decay: of matrices, times their rate.
        """
        self.steps += 1
        with torch.no_grad():
            moving = {n: w for n, w in self.weights.items() if w.grad is not None}
            matrices = {n: w for n, w in moving.items() if is_matrix(n)}
            self._adam({n: w for n, w in moving.items() if n not in matrices}, plain_rate)
            self._muon(matrices, rate, decay)
        for w in moving.values():
            w.grad = None

    def _adam(self, weights: Mapping[str, torch.Tensor], rate: float) -> None:
        if not weights:
            return
        names = list(weights)
        gradients = [weights[n].grad for n in names]
        first = [self._kept(self.first, n, weights[n]) for n in names]
        second = [self._kept(self.second, n, weights[n]) for n in names]
        torch._foreach_lerp_(first, gradients, 1.0 - _BETAS[0])
        torch._foreach_mul_(second, _BETAS[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - _BETAS[1])
        size = rate / (1.0 - _BETAS[0] ** self.steps)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1.0 - _BETAS[1] ** self.steps) ** 0.5)
        torch._foreach_add_(root, _EPSILON)
        sizes = [-size * plain_share(n, weights[n]) for n in names]
        torch._foreach_addcdiv_([weights[n] for n in names], first, root, sizes)

    def _muon(self, weights: Mapping[str, torch.Tensor], rate: float, decay: float) -> None:
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, w in weights.items():
            by_shape.setdefault(self._matrices(name, w).shape[-2:], []).append(name)
        for names in by_shape.values():
            moments = []
            for name in names:
                gradient, moment = weights[name].grad, self._kept(self.first, name, weights[name])
                moment.lerp_(gradient, 1.0 - _MOMENTUM)
                ahead = gradient.lerp(moment, _MOMENTUM)
                moments.append(self._matrices(name, ahead))
            steps = orthogonal(torch.cat(moments))
            rows, columns = steps.shape[-2:]
            size = rate * max(1.0, rows / columns) ** 0.5
            for name, part in zip(names, steps.split([len(m) for m in moments]), strict=True):
                w = weights[name]
                w.mul_(1.0 - rate * decay).add_(part.reshape(w.shape).to(w.dtype), alpha=-size)

    def _matrices(self, name: str, w: torch.Tensor) -> torch.Tensor:
        """A weight as a stack of matrices [n,N,K]."""
        if name.endswith(".wo_a"):
            return w.unflatten(0, (self.groups, -1))
        return w if w.ndim == 3 else w[None]

    @staticmethod
    def _kept(where: dict[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
        if name not in where:
            where[name] = torch.zeros_like(like, requires_grad=False)
        return where[name]


def optimiser(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> Optimiser:
    """A fresh optimiser of these weights."""
    return Optimiser(weights, config.o_groups)


def is_matrix(name: str) -> bool:
    """Whether a weight steps along orthogonalised momenta."""
    return _MATRIX.fullmatch(name) is not None


def plain_share(name: str, w: torch.Tensor) -> float:
    """The part of the plain rate that a weight steps by.

    Adam moves every element alike, so a product with many columns would change by all of them at
    once; tables that are looked up, and vectors, have no such sum.
    """
    looked_up = name.endswith(("embed", "markov_w1", ".ape"))
    return 1.0 if looked_up or w.ndim < 2 else min(1.0, _COLUMNS / w.shape[-1])


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Nearly the closest matrices with equal singular values, by Newton-Schulz steps.

    Shapes: [n,N,K], the same back.  Computed in bf16 on a GPU, where only direction counts.
    """
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT

"""The weights of the model as numbers: a dataclass for each part, decoded, in one precision."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [out, in] and how it is stored: "fp8", "fp4", "bf16", or "island" for float32.

    The kind decides what happens to the input of a product. Islands take it as it is. group is
    how many columns share a scale: the reference adds that many products at a time.
    """

    values: np.ndarray
    kind: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class Hyper:
    """A hyper-connection: fn [R,M*D], base [R], scale [3]; a head's has R = M and scale [1]."""

    fn: np.ndarray
    base: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True, slots=True)
class Compressor:
    """wkv, wgate [c*w,D], ape [r,c*w], norm [w]; c = 2 when blocks overlap."""

    wkv: Matrix
    wgate: Matrix
    ape: np.ndarray
    norm: np.ndarray


@dataclass(frozen=True, slots=True)
class Indexer:
    """wq_b [Hi*di,Rq], weights_proj [Hi,D], and a compressor of its own."""

    wq_b: Matrix
    weights_proj: Matrix
    compressor: Compressor


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one block; ratio 0 has no compressor, only ratio 4 has an indexer.

    wo_a is kept [G,Ro,H*d/G].
    """

    ratio: int
    wq_a: Matrix
    q_norm: np.ndarray
    wq_b: Matrix
    wkv: Matrix
    kv_norm: np.ndarray
    sink: np.ndarray
    wo_a: Matrix
    wo_b: Matrix
    compressor: Compressor | None
    indexer: Indexer | None


@dataclass(frozen=True, slots=True)
class Expert:
    """w1 and w3 [F,D], w2 [D,F]."""

    w1: Matrix
    w2: Matrix
    w3: Matrix


@dataclass(frozen=True, slots=True)
class Moe:
    """The experts of one block; either a bias [E] or a table [V,A] of expert ids selects."""

    gate: Matrix
    bias: np.ndarray | None
    table: np.ndarray | None
    experts: tuple[Expert, ...]
    shared: Expert


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: attention and experts, each behind a norm and inside a hyper-connection."""

    attn_hyper: Hyper
    attn_norm: np.ndarray
    attention: Attention
    ffn_hyper: Hyper
    ffn_norm: np.ndarray
    moe: Moe


@dataclass(frozen=True, slots=True)
class Exit:
    """What stands before an output head: the collapse of the copies, and a norm."""

    hyper: Hyper
    norm: np.ndarray


@dataclass(frozen=True, slots=True)
class Nextn:
    """The next-token block: two projections with their norms, a block, an exit."""

    e_proj: Matrix
    h_proj: Matrix
    enorm: np.ndarray
    hnorm: np.ndarray
    block: Block
    exit: Exit


@dataclass(frozen=True, slots=True)
class Drafter:
    """DSpark: projection of the taps, stages, exit, token bias and confidence."""

    main_proj: Matrix
    main_norm: np.ndarray
    stages: tuple[Block, ...]
    exit: Exit
    markov_w1: np.ndarray
    markov_w2: Matrix
    confidence: Matrix


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything a checkpoint holds; at most one of nextn and drafter."""

    embed: np.ndarray
    head: Matrix
    blocks: tuple[Block, ...]
    exit: Exit
    nextn: Nextn | None
    drafter: Drafter | None


def in_precision(weights: T, real: type[np.floating]) -> T:
    """The same weights with every float array in the given type; integers stay."""
    if is_dataclass(weights) and not isinstance(weights, type):
        changed = {f.name: in_precision(getattr(weights, f.name), real) for f in fields(weights)}
        return replace(weights, **changed)
    if isinstance(weights, tuple):
        return tuple(in_precision(part, real) for part in weights)  # type: ignore[return-value]
    if isinstance(weights, np.ndarray) and weights.dtype.kind == "f":
        return weights.astype(real, copy=False)  # type: ignore[return-value]
    return weights

"""The weights of a stage, as arrays on its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from dsv4.engine.joins import Joins
from dsv4.engine.links import Links
from dsv4.engine.shares import Share
from dsv4.errors import StateError
from dsv4.runtime.device import Device

BLOCK = 128
"""Rows and columns of an FP8 matrix that share a scale."""


class ExpertKind(Enum):
    """How a block's routed experts are stored; stored types and names decide."""

    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"


@dataclass(frozen=True, slots=True)
class Fp8Pair:
    """An FP8 matrix as stored: codes e4m3 [N,K], powers [N/128,K/128] as bytes and as f32."""

    codes: Any
    scale_bytes: Any
    scales: Any


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A matrix [N,K], or some of its rows, as products of few rows read it: bf16, or codes and
    scales.
    """

    bf16: Any
    codes: Any
    scales: Any

    def offset_rows(self, first: int, count: int) -> WeightRef:
        """Some of the rows. Errors: StateError when FP8 scales are not cut at a block."""
        rows = slice(first, first + count)
        if self.codes is None:
            return WeightRef(self.bf16[rows], None, None)
        if first % BLOCK or (count % BLOCK and first + count != int(self.codes.shape[0])):
            raise StateError(
                f"rows {first}..{first + count - 1} of an FP8 matrix were asked for\n"
                f"  its scales belong to blocks of {BLOCK} rows\n  in dsv4/engine/weights.py\n"
                "  cut at a multiple of it"
            )
        blocks = slice(first // BLOCK, -(-(first + count) // BLOCK))
        return WeightRef(None, self.codes[rows], self.scales[blocks])


@dataclass(frozen=True, slots=True)
class DenseView:
    """A matrix in bf16 to be used at once. temporary: it lies in scratch, until the next one."""

    array: Any
    temporary: bool


@dataclass(frozen=True, slots=True)
class DenseSlab:
    """A matrix [N,K] of a dense product: bf16, or FP8 that is made bf16 when a prompt needs it."""

    name: str
    rows: int
    columns: int
    bf16: Any
    fp8: Fp8Pair | None

    @property
    def ref(self) -> WeightRef:
        """The matrix as it is resident."""
        if self.fp8 is None:
            return WeightRef(self.bf16, None, None)
        return WeightRef(None, self.fp8.codes, self.fp8.scales)

    def dev(self) -> Any:
        """The bf16 matrix on the device. Errors: StateError when it is resident as FP8."""
        if self.bf16 is None:
            raise StateError(
                f"{self.name} was asked for in bf16\n  it is resident as FP8 codes\n"
                "  in dsv4/engine/weights.py\n  stage it, or load with DSV4_DENSE_ARM=bf16"
            )
        return self.bf16


@dataclass(frozen=True, slots=True)
class Fp4Bank:
    """One matrix of every expert: codes [E,N,K/2], scales [E,N,K/group], second [E] for NVFP4."""

    codes: Any
    scales: Any
    second: Any


@dataclass(frozen=True, slots=True)
class ExpertBank:
    """The routed experts of a block: gate w1 and up w3 [F,D], down w2 [D,F]."""

    kind: ExpertKind
    w1: Fp4Bank
    w2: Fp4Bank
    w3: Fp4Bank


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that every token takes."""

    w1: DenseSlab
    w2: DenseSlab
    w3: DenseSlab


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """fn f32 [R,M*D], base [R], scale; R = (2+M)M and 3 scales, or R = M and 1 before a head."""

    fn: Any
    base: Any
    scale: Any


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """wkv, wgate bf16 [c*w,D], ape f32 [r,c*w], norm f32 [w]; c = 2 when blocks overlap."""

    ratio: int
    overlap: bool
    width: int
    wkv: Any
    wgate: Any
    ape: Any
    norm: Any


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """The selection of blocks: wq_b [Hi*di,Rq], weights_proj [Hi,D], a compressor of its own."""

    wq_b: DenseSlab
    weights_proj: DenseSlab
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. layer: its number; blocks after the trunk go on counting.

    bias f32 [E] or table i64 [V,A] selects experts; the other one is None.
    """

    layer: int
    ratio: int
    attn_hyper: HyperWeights
    attn_norm: Any
    wq_a: DenseSlab
    q_norm: Any
    wq_b: DenseSlab
    wkv: DenseSlab
    kv_norm: Any
    sink: Any
    wo_a: DenseSlab
    wo_b: DenseSlab
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None
    ffn_hyper: HyperWeights
    ffn_norm: Any
    gate: Any
    bias: Any
    table: Any
    experts: ExpertBank
    shared: SharedExpert


@dataclass(frozen=True, slots=True)
class ExitWeights:
    """What stands before an output head: the collapse of the streams, and a norm."""

    hyper: HyperWeights
    norm: Any


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The next-token block: two projections with their norms, a block, an exit."""

    e_proj: DenseSlab
    h_proj: DenseSlab
    enorm: Any
    hnorm: Any
    layer: LayerWeights
    exit: ExitWeights


@dataclass(frozen=True, slots=True)
class DsparkWeights:
    """The drafter: its blocks, what turns taps into their common input, an exit, and its heads.

    main_proj [D,n*D] for n tapped layers. markov_w1, markov_w2 bf16 [V,R]; confidence bf16 [D+R].
    """

    blocks: tuple[LayerWeights, ...]
    main_proj: DenseSlab
    main_norm: Any
    exit: ExitWeights
    markov_w1: Any
    markov_w2: Any
    confidence: Any


@dataclass(slots=True)
class Stage:
    """One pipeline stage. embed is on the first stage, head and exit on the last.

    links: to stages in other processes. A last stage that is alone there and drafts embeds too.
    share: which part of a tensor-parallel model this is; a rank has all layers, embed, head and
    exit. joins: where its parts of sums meet those of the others; None where there are no others.

    rope_plain turns layers without blocks, rope_yarn all others: f32 [P,R].
    """

    index: int
    device: Device
    layers: tuple[LayerWeights, ...]
    embed: Any
    head: Any
    exit: ExitWeights | None
    rope_plain: Any
    rope_yarn: Any
    loaded_bytes: int = 0
    links: Links | None = None
    share: Share = Share(0, 1)
    joins: Joins | None = None

    def rope(self, ratio: int) -> Any:
        """The table of a layer of that ratio."""
        return self.rope_yarn if ratio else self.rope_plain


def arrays_of(part: Any) -> Iterator[Any]:
    """Every device array in a dataclass of weights or caches, however nested."""
    if is_dataclass(part) and not isinstance(part, type):
        for f in fields(part):
            yield from arrays_of(getattr(part, f.name))
    elif isinstance(part, (tuple, list)):
        for item in part:
            yield from arrays_of(item)
    elif isinstance(part, dict):
        for item in part.values():
            yield from arrays_of(item)
    elif hasattr(part, "nbytes") and hasattr(part, "dtype"):
        yield part


def size_bytes(part: Any) -> int:
    """Bytes of all distinct arrays of a part."""
    return sum(a.nbytes for a in {id(a): a for a in arrays_of(part)}.values())

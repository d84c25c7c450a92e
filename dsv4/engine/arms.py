"""The arms of the engine: every choice of arithmetic and placement, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final

from dsv4.runtime.device import Device
from dsv4.spec import BF16, F32, Format


class ExpertArm(Enum):
    """How routed experts are multiplied: on their FP4 codes, or on bf16 made of them."""

    NATIVE = "native"
    BF16_DEQUANT = "bf16_dequant"


class ActQuantVariant(Enum):
    """What the quantiser of key rows does: round through FP8, or clamp, which changes nothing."""

    REF_FP8_ROUND = "ref"
    CLAMP_ONLY = "clamp-only"


@dataclass(frozen=True, slots=True)
class DecodePath:
    """kind "legacy" runs a step like a prompt of one row; "device" as one stream of launches.

    host_math: mixing coefficients, routing, selection and the head's gate on the host.
    """

    kind: str
    host_math: bool

    @property
    def on_device(self) -> bool:
        """Whether a step is a prepared stream of launches."""
        return self.kind == "device"


@dataclass(frozen=True, slots=True)
class Arms:
    """Every choice of arithmetic and placement, resolved.

    dense_fp8: decode reads FP8 matrices as stored. dense_input_fp8: their inputs are FP8 per 128.
    dots_f32, chains_f32: which sums are float32 rather than float64. device_gemm: "gemv", or
    "cublas" for the library's product in a step. prefill_gemm: "library", or "rows" for the
    products of decode, which make a prompt's bytes independent of how it is cut. dspark_chain: a
    draft's tokens follow each other on the "device", or through the "host". quantisers: off
    makes every quantiser and every bf16 rounding the identity (law SMOOTH). split_at: first layers
    of the stages after the first; empty when derived. prefill_chunk: rows that go through the
    layers together. graphs: "auto" replays bound steps as graphs where that pays, on a GPU.
    branches: what does not depend on each other runs side by side in a graph. fused: a step takes
    launches that do the work of several, with the same bytes. dependent_launch: kernels of a step
    begin before the ones in front of them have ended. parallel: several devices hold "layers" each,
    or each holds its share of every layer ("tensor"), in which sums are cut: other bytes.
    """

    decode_path: DecodePath
    expert: ExpertArm
    dense_fp8: bool
    dense_input_fp8: bool
    dots_f32: bool
    chains_f32: bool
    dspark_head_f32: bool
    dspark_chain: str
    device_gemm: str
    prefill_gemm: str
    drafter: str
    spec_depth: int | None
    vt: str
    vt_tau: float
    vt_floor: int
    split_at: tuple[int, ...]
    variant: ActQuantVariant
    quantisers: bool
    profile: str
    prefill_chunk: int
    graphs: str
    branches: bool
    fused: str
    dependent_launch: str
    parallel: str = "layers"

    @property
    def indirect_experts(self) -> bool:
        """Whether experts are chosen on the device, without the host looking at ids."""
        return self.quantisers and self.expert is ExpertArm.NATIVE

    @property
    def index_format(self) -> Format:
        """Of the indexer's queries and keys: bf16, which has all that FP4 leaves.

        f32 for sums in float64, and without quantisers, where they are any numbers.
        """
        return BF16 if self.quantisers and self.chains_f32 else F32

    @property
    def fusable(self) -> bool:
        """Whether these arms have fused launches: every part on the device, sums in float32."""
        path = self.decode_path
        return (
            self.fused != "off"
            and path.on_device
            and not path.host_math
            and self.indirect_experts
            and self.dots_f32
            and self.chains_f32
            and self.dense_fp8
            and not self.dense_input_fp8
            and self.device_gemm == "gemv"
        )

    @property
    def capturable(self) -> bool:
        """Whether a step is launches only, and can be recorded as one graph."""
        path = self.decode_path
        return path.on_device and not path.host_math and self.indirect_experts

    def starts_early(self, device: Device) -> bool:
        """Whether launches on that device begin before the one in front has ended."""
        early = self.dependent_launch
        return early == "on" or (early == "auto" and device.launches_early)

    def to_json(self) -> dict[str, Any]:
        """The arms as a record has them."""

        def plain(value: Any) -> Any:
            if isinstance(value, Enum):
                return value.value
            if isinstance(value, DecodePath):
                return path_name(value)
            return list(value) if isinstance(value, tuple) else value

        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}


PATHS: Final = {
    "device": DecodePath("device", host_math=False),
    "device-hostmath": DecodePath("device", host_math=True),
    "legacy": DecodePath("legacy", host_math=True),
}
"""Decode paths by the words of DSV4_DECODE_PATH, the default first."""
VERIFY_ROWS: Final = 8
"""The most rows that one step takes: what the kernels of a few rows share a pass over."""


def path_name(path: DecodePath) -> str:
    """The word of DSV4_DECODE_PATH for a path."""
    return next(name for name, value in PATHS.items() if value == path)

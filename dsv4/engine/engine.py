"""The engine: a model on its stages, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.mint import MintPlan
from dsv4.engine import decode, draft, mtp, nextn, prefill, verify
from dsv4.engine import dspark as rings
from dsv4.engine import speculate as spec
from dsv4.engine.arms import VERIFY_ROWS, ActQuantVariant, Arms
from dsv4.engine.capture import Capture, ForwardOut
from dsv4.engine.checks import checked_ids, longest_sequence, open_devices
from dsv4.engine.links import Links, fetched
from dsv4.engine.opening import open_model
from dsv4.engine.placement import Placement
from dsv4.engine.source import WeightSource, open_source
from dsv4.engine.state import (
    DecodeState,
    live_classes,
    new_control,
    new_layer_cache,
    poisoning,
)
from dsv4.engine.switches import resolve_arms
from dsv4.engine.tape import Workspace
from dsv4.engine.weights import DsparkWeights, MtpWeights, Stage, size_bytes
from dsv4.errors import StateError
from dsv4.runtime.device import Device


@dataclass(frozen=True, slots=True)
class VramRow:
    """Memory of one stage or rank: its device, bytes free and in all, what the engine put there."""

    stage: int
    device: str
    free_bytes: int
    total_bytes: int
    loaded_bytes: int


@dataclass(slots=True, eq=False)
class Engine:
    """A loaded model. It holds no sequence: that is a `DecodeState`, and there may be several."""

    source: WeightSource
    arms: Arms
    stages: tuple[Stage, ...]
    placement: Placement
    mtp: MtpWeights | None
    max_seq: int
    spaces: tuple[Workspace, ...] = ()
    controls: tuple[Any, ...] = field(default=())
    dspark: DsparkWeights | None = None
    tail: str = "off"
    links: Links | None = None

    @classmethod
    def load(
        cls,
        model: Path | str | MintPlan | WeightSource,
        devices: Sequence[int | Device] = (0,),
        *,
        backend: str = "auto",
        variant: ActQuantVariant | str | None = None,
        max_seq: int | None = None,
        arms: Arms | None = None,
        progress: Callable[[int], None] = lambda size_bytes: None,
        links: Links | None = None,
        **switches: str | int | float | None,
    ) -> Engine:
        """The engine of a checkpoint folder or of a plan to mint, one stage for each device.

        links: to the processes with the other stages; then one device, and every process makes the
        same calls with the same arguments, in the same order.

        A device that comes twice holds two stages. Under DSV4_PARALLEL=tensor each device holds
        its share of all layers instead, and is there once. switches override the environment as
        `resolve_arms` says, unless `arms` are given. max_seq: the longest sequence.
        Errors: Refusal naming what cannot be, before anything is uploaded where headers show it;
        DeviceError for a device that is not there. Nothing stays loaded then.
        """
        if isinstance(variant, ActQuantVariant):
            variant = variant.value
        chosen = arms or resolve_arms(variant=variant, **switches)
        source = open_source(model)
        longest = longest_sequence(source.census.config, max_seq, source.where)
        places = open_devices(devices, backend)
        # Not a matter of what is loaded: arms that differ in it share their weights.
        if chosen.dependent_launch == "on":
            for device in places:
                device.require_dependent_launch()
        opened = open_model(source, places, chosen, max_seq=longest, progress=progress, links=links)
        spaces = tuple(Workspace(s.device, chosen.prefill_chunk) for s in opened.stages)
        controls = tuple(new_control(s.device, chosen.prefill_chunk) for s in opened.stages)
        return cls(
            source=source,
            arms=chosen,
            stages=opened.stages,
            placement=opened.placement,
            mtp=opened.mtp,
            max_seq=longest,
            spaces=spaces,
            controls=controls,
            dspark=opened.dspark,
            tail=opened.tail,
            links=links,
        )

    dspark_alloc_state = rings.dspark_alloc_state
    dspark_prefill_prime = rings.dspark_prefill_prime
    dspark_prime_prefill = rings.dspark_prime_prefill
    dspark_ring_classes = rings.dspark_ring_classes
    dspark_write_rings = rings.dspark_write_rings
    dspark_forward_spec = draft.dspark_forward_spec
    verify_tmax = property(verify.verify_tmax)
    alloc_verify_state = verify.alloc_verify_state
    verify_batch = verify.verify_batch
    commit_verify = verify.commit_verify
    decode_step_tap = verify.decode_step_tap
    decode_step_greedy_tap = verify.decode_step_greedy_tap
    mtp_alloc_state = nextn.mtp_alloc_state
    mtp_prefill_prime = nextn.mtp_prefill_prime
    mtp_accept = nextn.mtp_accept
    mtp_propose = nextn.mtp_propose
    spec_greedy = spec.spec_greedy
    spec_greedy_depth = spec.spec_greedy_depth
    speculate = spec.speculate

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.source.census.config

    @property
    def model(self) -> WeightSource:
        """Where the weights came from: tensors by name, and their census."""
        return self.source

    @property
    def rope_plain(self) -> np.ndarray:
        """The rotations of layers without blocks, f32 [positions, R], on the host."""
        return self.last.device.to_numpy(self.last.rope_plain)

    @property
    def rope_yarn(self) -> np.ndarray:
        """The rotations of all other layers."""
        return self.last.device.to_numpy(self.last.rope_yarn)

    @property
    def layer_stage(self) -> tuple[int, ...]:
        """The stage of every trunk layer."""
        return self.placement.layer_stage

    @property
    def split_at(self) -> tuple[int, ...]:
        """The first layers of the stages after the first."""
        return self.placement.split_at

    @property
    def variant(self) -> ActQuantVariant:
        """What the quantiser of key rows does."""
        return self.arms.variant

    @property
    def last(self) -> Stage:
        """The last stage of this process: the one with the head, unless other processes follow."""
        return self.stages[-1]

    @property
    def cards(self) -> int:
        """How many devices of this process hold the stages or ranks."""
        return len({id(stage.device) for stage in self.stages})

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        """A call that gives an array of the stage with the head on the host of every process.

        It waits for what was launched before `fetch`, and nothing later. Errors: PeerError;
        DeviceError when ranks have not met.
        """
        finish = fetched(self.links, self.last.device, array)
        return finish if self.last.joins is None else self.last.joins.checked(finish)

    def settle(self) -> None:
        """Wait until nothing is under way between processes. Errors: PeerError."""
        if self.links is not None:
            self.links.crossing()()

    def vram_report(self) -> list[VramRow]:
        """Memory of every stage now."""
        rows = []
        for s in self.stages:
            free, total = s.device.memory_bytes()
            rows.append(VramRow(s.index + s.share.rank, s.device.name, free, total, s.loaded_bytes))
        return rows

    def forward(
        self,
        ids: Sequence[int] | np.ndarray,
        capture: Capture | None = None,
        early_exit_after: int | None = None,
    ) -> ForwardOut | None:
        """The logits of the last position and the streams of all, without keeping a state.

        early_exit_after: the layer after which the pass ends; then the result is None.
        Errors: StateError for no ids, ids outside the vocabulary, too many, or no such layer.
        """
        if early_exit_after is not None:
            self._demand_alone("a pass that ends early")
        if early_exit_after is not None and not 0 <= early_exit_after < self.config.n_layers:
            raise StateError(
                f"a forward pass was to end after layer {early_exit_after}\n"
                f"  the trunk has layers 0..{self.config.n_layers - 1}\n"
                f"  in {self.source.where}\n  give one of them"
            )
        state = self._new_state(0)
        checked = self.check_ids(ids, 0, "a forward pass")
        return prefill.prefill(
            self, state, checked, keep_states=True, capture=capture, end_after=early_exit_after
        )

    def prefill_with_cache(
        self,
        ids: Sequence[int] | np.ndarray,
        state: DecodeState,
        *,
        keep_states: bool = False,
        capture: Capture | None = None,
        see_logits: prefill.SeeLogits | None = None,
    ) -> ForwardOut:
        """The logits after a prompt, or after its next piece; the state moves on by its length.

        keep_states: h_last holds the streams of all rows, not of the last one alone. see_logits:
        is shown the logits of every row.
        Errors: StateError as `forward`, for another engine's state, or one that a failed call left.
        """
        state.check(self, "a prefill")
        checked = self.check_ids(ids, state.pos, "a prefill")
        with poisoning(state):
            out = prefill.prefill(
                self, state, checked, keep_states=keep_states, capture=capture,
                see_logits=see_logits,
            )  # fmt: skip
            assert out is not None, "a prompt runs through all layers"
            return out

    def run_layer(
        self, layer: int, streams: np.ndarray, ids: Sequence[int] | np.ndarray
    ) -> Capture:
        """What one layer alone makes of streams [T,M,D] of positions 0.., with all intermediates.

        Errors: StateError for no such layer, or for streams and ids that do not fit.
        """
        self._demand_alone(f"layer {layer}")
        checked = self.check_ids(ids, 0, f"layer {layer}")
        shape = (len(checked), self.config.hc_mult, self.config.dim)
        if not 0 <= layer < self.config.n_layers or streams.shape != shape:
            raise StateError(
                f"layer {layer} was asked for on streams {list(streams.shape)}\n"
                f"  there are layers 0..{self.config.n_layers - 1}, and ids for {list(shape)}\n"
                "  in Engine.run_layer\n  give a layer of the trunk and a row for each id"
            )
        capture = Capture()
        prefill.layer_of_streams(self, layer, streams, checked, capture)
        return capture

    def trunk_logits_row(self, h: Any, s: int, row: int) -> np.ndarray:
        """The trunk's logits [V] at one row of streams [s,M,D] on the last stage.

        Errors: StateError for a row that is not there.
        """
        if not 0 <= row < s <= int(h.shape[0]):
            raise StateError(
                f"row {row} of {s} was asked for\n  the streams have {int(h.shape[0])} rows\n"
                "  in Engine.trunk_logits_row\n  give a row below s"
            )
        return prefill.logits_of(self, h[row : row + 1])

    def mtp_logits_last(
        self, h_trunk: Any, ids: Sequence[int] | np.ndarray, capture: Capture | None = None
    ) -> np.ndarray:
        """The next-token block's logits [V] at the last row of streams [s,M,D] and s token ids.

        Row i joins the streams of position i with the embedding of ids[i]: the same ids as the
        trunk's for the recorded call, ids moved on by one to draft. The block's layer number is
        the trunk's count of layers. Errors: StateError without a block, or for ids that do not fit.
        """
        if self.mtp is None:
            raise StateError(
                "logits of the next-token block were asked for\n  none is loaded\n"
                f"  from {self.source.where}\n  open a release with mtp.0.e_proj"
            )
        checked = self.check_ids(ids, 0, "the next-token block")
        if len(checked) != int(h_trunk.shape[0]):
            raise StateError(
                f"the next-token block was asked about {len(checked)} ids\n"
                f"  the streams have {int(h_trunk.shape[0])} rows\n  in Engine.mtp_logits_last\n"
                "  give one id for each row"
            )
        return mtp.logits_last(self, self.mtp, h_trunk, checked, capture)

    def alloc_decode_state(self, rows: int | None = None) -> DecodeState:
        """An empty sequence. rows: the most rows of one step; 1, or 8 with a drafter.

        Errors: StateError for more rows than a step can have, DeviceError without memory.
        """
        wanted = rows or (1 if self.arms.drafter == "off" else VERIFY_ROWS)
        if not 1 <= wanted <= VERIFY_ROWS:
            raise StateError(
                f"a state for steps of {wanted} rows was asked for\n"
                f"  a step has 1 to {VERIFY_ROWS} rows\n  in Engine.alloc_decode_state\n"
                "  ask for fewer; prompts are not limited by it"
            )
        return self._new_state(wanted)

    def decode_step(self, tok: int, state: DecodeState) -> np.ndarray:
        """The logits [V] after one more token; the state moves on by it.

        Errors: StateError before a prefill, at the end of the capacity, for a token outside the
        vocabulary, another engine's state, or one that a failed call left half-advanced.
        """
        with self.stepping(state, (tok,)) as ids:
            logits: np.ndarray = decode.step_logits(self, state, ids)[0]
        return logits

    def decode_step_greedy(self, tok: int, state: DecodeState) -> int:
        """The token with the largest logit after one more token, ties to the lowest."""
        with self.stepping(state, (tok,)) as ids:
            chosen = int(decode.step_greedy(self, state, ids)[0])
        return chosen

    def decode_step_probe(
        self, tok: int, state: DecodeState
    ) -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
        """A step's logits, and arrays of every layer by name; on the legacy path only.

        Names are layerN.x, .q, .kv, .o, .attn_out, .moe_out and .h3 (the streams after it).
        """
        if self.arms.decode_path.on_device:
            raise StateError(
                "a probed step was asked for\n  the device path keeps no intermediates\n"
                "  in Engine.decode_step_probe\n  load with DSV4_DECODE_PATH=legacy"
            )
        capture = Capture()
        with self.stepping(state, (tok,)) as ids:
            logits = decode.step_eagerly(self, state, ids, capture)[0]
        fields = (
            ("x", capture.x_dbg), ("q", capture.q_dbg), ("kv", capture.kv_dbg),
            ("o", capture.o_dbg), ("attn_out", capture.attn_out), ("moe_out", capture.moe_out),
            ("h3", capture.layer_out),
        )  # fmt: skip
        named = [
            (f"layer{n}.{name}", held[n])
            for n in range(self.config.n_layers)
            for name, held in fields
        ]
        return logits, named

    def cache_classes(self, state: DecodeState, rank: int = -1) -> list[tuple[str, np.ndarray]]:
        """Host copies of everything the layers remember of a sequence, by name, in layer order.

        rank: of a tensor-parallel model; all ranks remember the same.
        """
        state.check(self, "the contents of the caches")
        found = []
        stages = self.stages if self.last.joins is None else (self.stages[rank],)
        for stage in stages:
            for w in stage.layers:
                cache = state.caches[rank][w.layer]
                found += live_classes(stage.device, self.config, w.layer, cache, state.pos)
        return found

    def check_ids(
        self, ids: Sequence[int] | np.ndarray, start: int, asked: str
    ) -> npt.NDArray[np.int32]:
        """The ids as int32, once they fit from that position on. Errors: StateError."""
        return checked_ids(
            ids, start, asked, self.config.vocab_size, self.max_seq, self.source.where
        )

    @contextmanager
    def stepping(self, state: DecodeState, toks: Sequence[int]) -> Iterator[np.ndarray]:
        """Checked ids of a step; afterwards the state has moved on, or is poisoned."""
        state.check(self, "a step")
        if state.pos == 0:
            raise StateError(
                "a step was asked for on an empty state\n  no prompt has been seen\n"
                "  in dsv4.engine.decode\n  call prefill_with_cache first"
            )
        ids = self.check_ids(np.asarray(toks), state.pos, "a step")
        with poisoning(state):
            yield ids
            state.pos += len(ids)

    def _demand_alone(self, asked: str) -> None:
        if self.links is not None:
            raise StateError(
                f"{asked} was asked for\n  this process has one stage of {self.links.world}\n"
                "  in dsv4.engine\n  load the model in one process"
            )

    def _new_state(self, rows: int) -> DecodeState:
        chunk, keys = self.arms.prefill_chunk, self.arms.index_format
        held = [
            {
                w.layer: new_layer_cache(s.device, self.config, w.ratio, self.max_seq, chunk, keys)
                for w in s.layers
            }
            for s in self.stages
        ]
        caches = held
        if self.last.joins is None:
            caches = [{n: cache for own in held for n, cache in own.items()}]
        return DecodeState(
            engine=self,
            caches=tuple(caches),
            cache_bytes=tuple(sum(map(size_bytes, own.values())) for own in held),
            capacity=self.max_seq,
            round_rows=rows,
            workspaces=tuple(Workspace(s.device, rows) for s in self.stages if rows),
            control=tuple(new_control(s.device, rows) for s in self.stages if rows),
        )

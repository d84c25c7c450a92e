"""Which layers go where, and how many bytes that takes, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4.checkpoint.census import Census
from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.expected import Entry
from dsv4.checkpoint.formats import block_of
from dsv4.engine.arms import VERIFY_ROWS, Arms
from dsv4.engine.joins import windows
from dsv4.engine.shares import Share, demand_divisible
from dsv4.engine.state import cache_bytes
from dsv4.errors import Refusal
from dsv4.kernels.attention import CHUNK
from dsv4.kernels.join import mailbox_letters

SPARE_BYTES = 1 << 30
"""What a device keeps free beside everything counted here."""
_LIBRARY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage will hold. layers: first and one past the last."""

    index: int
    device: int
    layers: tuple[int, int]
    weight_bytes: int
    table_bytes: int
    state_bytes: int
    workspace_bytes: int

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.table_bytes + self.state_bytes + self.workspace_bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """The stages of a model. layer_stage: the stage of every trunk layer."""

    stages: tuple[StagePlan, ...]
    layer_stage: tuple[int, ...]
    max_seq: int

    @property
    def split_at(self) -> tuple[int, ...]:
        """The first layers of the stages after the first."""
        return tuple(s.layers[0] for s in self.stages[1:] if s.layers[0])

    def table(self, free: dict[int, int] | None = None) -> str:
        """The stages as aligned text, with what is free on each device if known."""
        lines = ["stage  device  layers   weights GB  tables GB  state GB  workspace GB  all GB"]
        for s in self.stages:
            first, end = s.layers
            lines.append(
                f"{s.index:5}  {s.device:6}  {first:2}..{end - 1:<3}  {s.weight_bytes / 1e9:10.3f}"
                f"  {s.table_bytes / 1e9:9.3f}  {s.state_bytes / 1e9:8.3f}"
                f"  {s.workspace_bytes / 1e9:12.3f}  {s.size_bytes / 1e9:6.3f}"
            )
        for device, size in (free or {}).items():
            lines.append(f"device {device}: {size / 1e9:.3f} GB free")
        return "\n".join(lines)


def plan_placement(
    census: Census, arms: Arms, *, devices: Sequence[int], max_seq: int, tail: str
) -> Placement:
    """The stages on these devices (an index each; one may come more than once).

    tail: "mtp" or "dspark" when the blocks behind the trunk are loaded, onto the last stage.
    Under DSV4_PARALLEL=tensor every device is a rank with its share of all layers.
    Errors: Refusal for splits that leave a stage without layers or a target of the drafter on
    another stage than its drafter; for ranks that do not divide the model or a device twice.
    """
    config, count = census.config, len(devices)
    if arms.parallel == "tensor":
        return _plan_ranks(census, arms, devices, max_seq)
    sizes = [0] * config.n_layers
    outside = {"first": 0, "last": 0, "tail": 0}
    for name, entry in census.entries.items():
        size = resident_bytes(name, entry, arms)
        block = block_of(name)
        if block.startswith("layers."):
            sizes[int(block.split(".")[1])] += size
        elif block.startswith("mtp."):
            outside["tail"] += size if tail != "off" else 0
        else:
            outside["first" if name == "embed.weight" else "last"] += size
    splits = arms.split_at or balanced_splits(sizes, count)
    _check_splits(splits, count, config, tail)
    edges = (0, *splits, config.n_layers)
    rows = arms.prefill_chunk
    stages = []
    for index, device in enumerate(devices):
        first, end = edges[index], edges[index + 1]
        weights = sum(sizes[first:end])
        if index == 0:
            weights += outside["first"]
        if index == count - 1:
            weights += outside["last"] + outside["tail"]
        ratios = config.compress_ratios[first:end]
        state = sum(cache_bytes(config, r, max_seq, rows, arms.index_format) for r in ratios)
        tables = 2 * 4 * rope_positions(config, max_seq) * config.rope_head_dim
        spaces = workspace_bytes(config, arms, max_seq, last=index == count - 1)
        stages.append(StagePlan(index, device, (first, end), weights, tables, state, spaces))
    layer_stage = tuple(
        next(s.index for s in stages if s.layers[0] <= n < s.layers[1])
        for n in range(config.n_layers)
    )
    return Placement(tuple(stages), layer_stage, max_seq)


def _plan_ranks(census: Census, arms: Arms, devices: Sequence[int], max_seq: int) -> Placement:
    config, world = census.config, len(devices)
    if len(set(devices)) != world:
        raise Refusal(
            f"DSV4_PARALLEL=tensor was asked for on devices {','.join(map(str, devices))}\n"
            "  one comes twice, and a rank that waits there would keep the other from running\n"
            "  in dsv4.engine.placement\n  give each rank a device of its own"
        )
    demand_divisible(config, world, "the configuration")
    stages = []
    for rank, device in enumerate(devices):
        share = Share(rank, world)
        weights = sum(
            resident_bytes(name, share.entry(name, entry), arms)
            for name, entry in census.entries.items()
            if not name.startswith("mtp.")
        )
        own = share.config(config)
        ratios = config.compress_ratios[: config.n_layers]
        rows, keys = arms.prefill_chunk, arms.index_format
        state = sum(cache_bytes(config, r, max_seq, rows, keys) for r in ratios)
        tables = 2 * 4 * rope_positions(config, max_seq) * config.rope_head_dim
        spaces = workspace_bytes(own, arms, max_seq, last=True) + _join_bytes(config, arms, world)
        stages.append(StagePlan(rank, device, (0, config.n_layers), weights, tables, state, spaces))
    return Placement(tuple(stages), (0,) * config.n_layers, max_seq)


def _join_bytes(config: ModelConfig, arms: Arms, world: int) -> int:
    """Mailboxes of joins of every size that occurs, and the sums."""
    if world == 1:
        return 0
    most = arms.prefill_chunk
    cuts = (cut for n in range(1, most + 1) for cut in windows(n, config.dim, most))
    sizes = {cut.stop - cut.start for cut in cuts}
    boxes = sum(8 * mailbox_letters(world, rows, config.dim) for rows in sizes)
    return boxes + 4 * config.dim * arms.prefill_chunk + 4 * config.vocab_size * VERIFY_ROWS


def rope_positions(config: ModelConfig, max_seq: int) -> int:
    """Rows of a rope table: draft rows turn by positions past the last token's."""
    return max_seq + config.dspark_block_size + 1


def resident_bytes(name: str, entry: Entry, arms: Arms) -> int:
    """Bytes that a stored tensor takes once it is loaded."""
    if name.endswith(".input_scale"):
        return 0
    if entry.component == "routed experts":
        return entry.size_bytes
    if entry.dtype == "F8_E4M3":
        return entry.size_bytes * (1 if arms.dense_fp8 else 2)
    if entry.dtype == "F8_E8M0":
        return entry.size_bytes * (1 + 4 if arms.dense_fp8 else 0)
    if entry.dtype == "BF16" and len(entry.shape) == 1:
        return 2 * entry.size_bytes  # widened to f32
    return entry.size_bytes


def balanced_splits(sizes: Sequence[int], stages: int) -> tuple[int, ...]:
    """First layers of the stages after the first, so that stages weigh about the same.

    A stage ends with the layer that brings the running sum to its share or past it.
    """
    splits: list[int] = []
    total, running = sum(sizes), 0
    for number, size in enumerate(sizes):
        running += size
        left = len(sizes) - number - 1
        if len(splits) < stages - 1 and running * stages >= total * (len(splits) + 1):
            splits.append(min(number + 1, len(sizes) - 1))
        elif len(splits) < stages - 1 and left == stages - 1 - len(splits):
            splits.append(number + 1)
    return tuple(splits)


def workspace_bytes(config: ModelConfig, arms: Arms, max_seq: int, *, last: bool) -> int:
    """About what prompt and step need for intermediates on a stage."""
    c = config
    heads, experts = c.n_heads * c.head_dim, c.n_activated_experts
    blocks = max_seq // 4 if 4 in c.compress_ratios else 0
    coarse = [r for r in c.compress_ratios if r > 4]
    listed = c.window_size + max(c.index_topk, max_seq // min(coarse) if coarse else 0)
    streams = 2 * c.hc_mult * c.dim
    attention = 2 * heads + heads // 2 + 3 * c.q_lora_rank + 2 * c.head_dim + listed + blocks
    projections = 4 * c.head_dim + 2 * c.o_groups * c.o_lora_rank + 8 * c.dim
    index = 2 * c.index_n_heads * c.index_head_dim
    routed = experts * (3 * c.moe_inter_dim + c.dim) + 5 * c.moe_inter_dim + c.n_routed_experts
    row = 4 * (streams + attention + projections + index + routed)
    size = row * (arms.prefill_chunk + 1) + _LIBRARY_BYTES
    # A step's attention is cut into chunks of listed rows.
    size += 4 * -(-listed // CHUNK) * c.n_heads * (c.head_dim + 2)
    staged = max(heads * max(c.q_lora_rank, c.o_lora_rank), c.dim * c.o_groups * c.o_lora_rank)
    size += 2 * staged if arms.dense_fp8 else 0
    return size + (4 * c.vocab_size * VERIFY_ROWS if last else 0)


def demand_room(placement: Placement, free: dict[int, int], where: str) -> None:
    """Nothing, if everything fits. Errors: Refusal with the table, before anything is uploaded.

    free: by device; stages on devices that are not in it are looked after by other processes.
    """
    needed: dict[int, int] = {}
    for stage in placement.stages:
        if stage.device not in free:
            continue
        needed[stage.device] = needed.get(stage.device, 0) + stage.size_bytes
    for device, size in needed.items():
        if size + SPARE_BYTES > free[device]:
            raise Refusal(
                f"{where} was to be loaded for {placement.max_seq} positions\n"
                f"  device {device} has {free[device] / 1e9:.2f} GB free; it needs"
                f" {size / 1e9:.2f} GB and {SPARE_BYTES / 1e9:.2f} GB to spare\n"
                + "".join(f"  {line}\n" for line in placement.table(free).splitlines())
                + "  use more devices, a smaller max_seq, or DSV4_DENSE_ARM=fp8"
            )


def _check_splits(splits: Sequence[int], stages: int, config: ModelConfig, tail: str) -> None:
    def refused(found: str, advice: str) -> Refusal:
        return Refusal(
            f"DSV4_SPLIT_AT={','.join(map(str, splits))} was asked for with {stages} stages\n"
            f"  {found}\n  of {config.n_layers} layers\n  {advice}"
        )

    if len(splits) != stages - 1:
        raise refused(
            f"{len(splits)} splits make {len(splits) + 1} stages",
            "give one split less than devices, or none",
        )
    edges = (0, *splits, config.n_layers)
    if any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
        raise refused(
            "a stage would have no layers", f"give ascending layers from 1 to {config.n_layers - 1}"
        )
    targets = config.dspark_target_layer_ids
    if tail == "dspark" and splits and min(targets) < splits[-1]:
        raise refused(
            f"layer {min(targets)} is a target of the drafter and not on the last stage",
            f"split at {min(targets)} or before",
        )

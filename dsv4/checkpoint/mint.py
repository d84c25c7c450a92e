"""Makes checkpoints with the published names, types and layouts, from a seed, in files or memory.

Every tensor's content is a function of (seed, name, index), so any part can be made alone, and a
checkpoint made on a GPU has the bytes of one made in files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dsv4.checkpoint.agreeable import is_changed, speak
from dsv4.checkpoint.config import ModelConfig
from dsv4.checkpoint.expected import Entry, Layout, expected_tensors
from dsv4.checkpoint.formats import STORAGE, format_of
from dsv4.checkpoint.published import (
    LAYOUTS,
    layout_of_name,
    model_config,
    nvfp4_manifest,
    published_config,
)
from dsv4.checkpoint.reader import INDEX_FILE
from dsv4.checkpoint.recipes import Recipe, recipe
from dsv4.checkpoint.rules import refuse
from dsv4.errors import LaunchError, SpecError
from dsv4.kernels.mint import mint_expert_ids
from dsv4.runtime.device import Device

SHARD_BYTES: Final = 4_000_000_000
_CHUNK_BYTES: Final = 1 << 26
_SPARE_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class MintPlan:
    """What a made checkpoint will hold; nothing is made yet.

    agreeing: the share of tokens behind which the drafter is right (`dsv4.checkpoint.agreeable`).
    """

    size: str
    layout_name: str
    seed: int
    config_content: Mapping[str, Any]
    config: ModelConfig
    layout: Layout
    entries: Mapping[str, Entry]
    agreeing: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(e.size_bytes for e in self.entries.values())

    def tensor(self, device: Device, name: str, *, out: Any = None) -> Any:
        """One tensor on a device, into `out` when given. Errors: as `mint_tensors`."""
        entry = self.entries[name]
        if out is None:
            return self.tensors(device, (name,)).reshape(entry.shape)
        self.tensors(device, (name,), out=_same_memory(device, out, (1, *entry.shape)))
        return out

    def tensors(self, device: Device, names: Sequence[str], *, out: Any = None) -> Any:
        """Tensors of one type and shape, one after the other. Errors: as `mint_tensors`."""
        entry = self.entries[names[0]]
        for name in names:
            if self.entries[name] != entry:
                raise _unlike(names[0], name)
        made = mint_tensors(device, names, entry, config=self.config, seed=self.seed, out=out)
        for place, name in enumerate(names):
            if is_changed(self, name):
                # A slice stays a view where an element would be a copy.
                part = made[place : place + 1]
                speak(self, device, name, part.reshape(entry.shape or (1,)))
        return made

    def chunks(self, device: Device, name: str) -> Iterator[np.ndarray]:
        """A tensor's content on the host, in pieces where it is large."""
        if is_changed(self, name):
            yield device.to_numpy(self.tensor(device, name))
            return
        entry = self.entries[name]
        yield from mint_chunks(device, name, entry, config=self.config, seed=self.seed)

    def shards(self, limit_bytes: int = SHARD_BYTES) -> list[list[str]]:
        """Tensor names by file, blocks in order, each file within the limit if tensors allow."""
        files: list[list[str]] = [[]]
        filled = 0
        for name, entry in self.entries.items():
            if files[-1] and filled + entry.size_bytes > limit_bytes:
                files.append([])
                filled = 0
            files[-1].append(name)
            filled += entry.size_bytes
        return files


def plan_mint(
    size: str,
    layout: str,
    *,
    seed: int = 0,
    layers: int | None = None,
    experts: int | None = None,
    agreeing: float | None = None,
) -> MintPlan:
    """The plan of a checkpoint. Errors: Refusal for sizes or shares that cannot be."""
    if agreeing is not None and not 0.0 <= agreeing <= 1.0:
        raise refuse("mint-size", f"a share of {agreeing}", "the options", "give one from 0 to 1")
    config = model_config(size, layout, layers=layers, experts=experts)
    chosen = layout_of_name(layout, config)
    return MintPlan(
        size=size,
        layout_name=layout,
        seed=seed,
        config_content=published_config(size, layout, layers=layers, experts=experts),
        config=config,
        layout=chosen,
        entries=expected_tensors(config, chosen),
        agreeing=agreeing,
    )


def mint_tensors(
    device: Device,
    names: Sequence[str],
    entry: Entry,
    *,
    config: ModelConfig,
    seed: int,
    out: Any = None,
) -> Any:
    """The contents of tensors of one type and shape, made on the device in one launch.

    Names of one matrix in all experts of a block fill a bank at once; nothing but their keys is
    copied from the host.

    out: an array of the entry's storage type with a row for each name; rows are contiguous and may
    lie apart, as in a slab of experts. A new array [names, *shape] when there is none.
    Shapes: [E, N] or [E, *shape].
    Errors: LaunchError for an `out` that does not fit, SpecError for unlike tensors, CompileError
    without a compiler.
    """
    if out is None:
        out = device.empty((len(names), *entry.shape), format_of(entry.dtype))
    recipes = [recipe(config, name, entry) for name in names]
    for name, made in zip(names, recipes, strict=True):
        if replace(made, stream="") != replace(recipes[0], stream=""):
            raise _unlike(names[0], name)
    if recipes[0].kernel is None:
        device.write(out, np.full(out.shape, recipes[0].value, np.float32))
    elif entry.dtype == "I64":
        for made, rows in zip(recipes, out, strict=True):
            _fill(device, [made], _same_memory(device, rows, entry.shape), seed, 0)
    else:
        rows = _same_memory(device, out, (len(names), math.prod(entry.shape)))
        _fill(device, recipes, rows, seed, 0)
    return out


def _unlike(first: str, other: str) -> SpecError:
    return SpecError(
        f"{first} and {other} are to be made together, but are filled differently\n"
        "  in dsv4/checkpoint/mint.py\n  give names of one matrix in several experts"
    )


def _same_memory(device: Device, array: Any, shape: Sequence[int]) -> Any:
    """The array in another shape, without a copy, which would be filled in its place.

    Errors: LaunchError when its elements do not lie like that.
    """
    view = array.reshape(shape)
    if array.size and device.address(view) != device.address(array):
        raise LaunchError(
            f"an array {list(array.shape)} with strides {list(array.strides)} is to be filled as"
            f" {list(shape)}, and its elements lie apart\n  in dsv4/checkpoint/mint.py\n"
            "  pass an array whose rows are contiguous"
        )
    return view


def _fill(device: Device, recipes: Sequence[Recipe], out: Any, seed: int, start: int) -> None:
    """Elements (rows of a table) from `start` on, into out."""
    kernel, scalars = recipes[0].kernel, recipes[0].scalars
    keys = [key_of(seed, made.stream) for made in recipes]
    assert kernel is not None
    if kernel is mint_expert_ids:
        kernel(out=out, device=device, key=keys[0], start=start, **scalars)
        return
    on_device = device.to_device(np.array(keys, np.int64))
    kernel(on_device, out=out, device=device, start=start, **scalars)


def key_of(seed: int, stream: str) -> int:
    """The 64-bit key of a tensor's random numbers, as a signed integer."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def mint_chunks(
    device: Device, name: str, entry: Entry, *, config: ModelConfig, seed: int
) -> Iterator[np.ndarray]:
    """A tensor's content in pieces of at most 64 MiB (or one row), on the host, in order."""
    made = recipe(config, name, entry)
    fmt = format_of(entry.dtype)
    if made.kernel is None:
        yield np.full(entry.shape, made.value, STORAGE[entry.dtype])
        return
    table = entry.dtype == "I64"
    width = entry.shape[1] if table else 1
    count = math.prod(entry.shape) // width
    # A multiple of what every kernel makes from one block.
    step = max(1, _CHUNK_BYTES // (width * fmt.size_bytes * 16)) * 16
    for start in range(0, count, step):
        length = min(step, count - start)
        part = device.empty((length, width) if table else (1, length), fmt)
        _fill(device, [made], part, seed, start)
        yield device.to_numpy(part)


def write_checkpoint(
    plan: MintPlan,
    out: Path,
    *,
    device: Device,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Write the checkpoint into a new folder, which appears when everything is in it.

    progress is called with the bytes written since its last call.
    Errors: Refusal when `out` exists (an empty folder excepted) or the disk is too small; OSError
    while writing. Nothing is left behind then.
    """
    shards = plan.shards(shard_bytes)
    headers = [_header(plan, names) for names in shards]
    _require_room(out, plan.size_bytes + sum(map(len, headers)) + _SPARE_BYTES)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        weight_map: dict[str, str] = {}
        for number, (names, header) in enumerate(zip(shards, headers, strict=True), 1):
            shard = f"model-{number:05}-of-{len(shards):05}.safetensors"
            with (partial / shard).open("wb") as file:
                file.write(header)
                for name in _by_alignment(plan, names):
                    for chunk in plan.chunks(device, name):
                        file.write(chunk.data if chunk.ndim else chunk.tobytes())
                        progress(chunk.nbytes)
            weight_map.update(dict.fromkeys(names, shard))
        for file_name, content in _manifests(plan, weight_map).items():
            text = json.dumps(content, indent=1, ensure_ascii=False)
            (partial / file_name).write_text(text + "\n", encoding="utf-8")
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _manifests(plan: MintPlan, weight_map: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    index = {"metadata": {"total_size": plan.size_bytes}, "weight_map": weight_map}
    files: dict[str, Mapping[str, Any]] = {INDEX_FILE: index, "config.json": plan.config_content}
    if LAYOUTS[plan.layout_name].nvfp4:
        manifest = nvfp4_manifest(plan.config.n_layers)
        files["hf_quant_config.json"] = {"quantization": manifest}
    return files


def _by_alignment(plan: MintPlan, names: Sequence[str]) -> list[str]:
    """Wide elements first, so that every tensor of a file begins on a multiple of its element."""
    return sorted(names, key=lambda n: -STORAGE[plan.entries[n].dtype].itemsize)


def _header(plan: MintPlan, names: Sequence[str]) -> bytes:
    content: dict[str, Any] = {
        "__metadata__": {
            "format": "pt",
            "minted": f"{plan.size} {plan.layout_name} seed {plan.seed}"
            + ("" if plan.agreeing is None else f" agreeing {plan.agreeing}"),
        }
    }
    offset = 0
    for name in _by_alignment(plan, names):
        entry = plan.entries[name]
        end = offset + entry.size_bytes
        content[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    raw = json.dumps(content, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _require_room(out: Path, size_bytes: int) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise refuse("mint-target", "something is there already", out, "give another folder")
    existing = next(p for p in (out.absolute().parent, *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < size_bytes:
        raise refuse(
            "mint-target",
            f"{free / 1e9:.1f} GB free, {size_bytes / 1e9:.1f} GB needed",
            existing,
            "free some, or ask for fewer --layers or --experts",
        )

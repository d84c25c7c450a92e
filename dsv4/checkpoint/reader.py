"""Reads sharded safetensors checkpoints through memory maps, one tensor or one block at a time."""

from __future__ import annotations

import gzip
import json
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from dsv4.checkpoint.config import config_file, read_json_object
from dsv4.checkpoint.formats import STORAGE, block_of
from dsv4.checkpoint.headers import Header, StoredTensor, parse_header, read_header
from dsv4.checkpoint.rules import refuse

INDEX_FILE: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"


@dataclass(slots=True)
class Checkpoint:
    """The tensors of a checkpoint by name, without a copy in memory.

    entries are in the order of shards and data. has_data: false when only headers were read.
    metadata: the remarks of all headers.
    """

    path: Path
    entries: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    has_data: bool = True
    config_content: Mapping[str, Any] | None = None
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        rename: Callable[[str], str] | None = None,
        headers_only: bool = False,
    ) -> Checkpoint:
        """The checkpoint of a folder, of one safetensors file, or of a file of headers.

        A folder is read by its index, or holds exactly one file of tensors. A file of headers is
        JSON, compressed or not: `config`, and `shards` from file name to safetensors header.
        rename: from stored to published names. headers_only: the files need not hold their data.

        Errors: Refusal naming the rule, OSError when a file cannot be read.
        """
        path, config = Path(path), None
        if path.is_file() and path.suffix != ".safetensors":
            config, headers = _headers_file(path)
            headers_only = True
        elif path.is_file():
            headers = [read_header(path, headers_only=headers_only)]
        elif not path.is_dir():
            raise refuse("no-tensors", "nothing", path, "give a folder that exists")
        elif (path / INDEX_FILE).is_file():
            headers = _indexed(path, headers_only)
        else:
            headers = [read_header(_only_file(path), headers_only=headers_only)]
        remarks = {key: value for header in headers for key, value in header.metadata.items()}
        return cls(path, _by_name(headers, rename, path), remarks, not headers_only, config)

    def __iter__(self) -> Iterator[str]:
        """Tensor names in stored order."""
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        """Whether a tensor of that name is stored."""
        return name in self.entries

    def __len__(self) -> int:
        """How many tensors are stored."""
        return len(self.entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.size_bytes for t in self.entries.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in stored order."""
        return tuple(dict.fromkeys(t.file for t in self.entries.values()))

    def config(self) -> tuple[Mapping[str, Any], Path]:
        """The configuration stored beside the tensors, and the file it comes from.

        Errors: Refusal when there is none.
        """
        if self.config_content is not None:
            return self.config_content, self.path
        file = config_file(self.path if self.path.is_dir() else self.path.parent)
        return read_json_object(file, "config-file"), file

    def entry(self, name: str) -> StoredTensor:
        """How a tensor is stored. Errors: Refusal when it is not."""
        if name not in self.entries:
            raise refuse(
                "unknown-tensor",
                f"no {name!r} among {len(self.entries)} tensors",
                self.path,
                "list them with: dsv4-lab census DIR --json",
            )
        return self.entries[name]

    def tensor(self, name: str) -> np.ndarray:
        """The stored bits of a tensor, a read-only view of the mapped file.

        bf16 is uint16; FP8, packed FP4 and scales are uint8. Errors: Refusal when it is not stored
        or only headers were read.
        """
        stored = self.entry(name)
        if not self.has_data:
            raise refuse(
                "headers-only", f"headers alone, asked for {name}", self.path, "open the files"
            )
        dtype = STORAGE[stored.dtype]
        return np.ndarray(stored.shape, dtype, self._map(stored.file), stored.offset)

    def release(self, name: str) -> None:
        """Let the kernel take back the memory of a tensor's pages; reading it again is allowed."""
        stored = self.entry(name)
        mapped = self._maps.get(stored.file)
        if mapped is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        # Whole pages; a neighbour that shares one is read from the file again when needed.
        begin = stored.offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, begin, stored.offset + stored.size_bytes - begin)

    def stream(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """Each tensor in turn; its memory is given back when the next one is asked for."""
        for name in self if names is None else names:
            yield name, self.tensor(name)
            self.release(name)

    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Tensor names by block ("", "layers.0.", ..., "mtp.0."), each in the order of its data."""
        grouped: dict[str, list[str]] = {}
        for name in self:
            grouped.setdefault(block_of(name), []).append(name)
        return {block: tuple(names) for block, names in grouped.items()}

    def close(self) -> None:
        """Forget the maps; arrays that are still used keep their file mapped."""
        self._maps.clear()

    def __enter__(self) -> Checkpoint:
        """This checkpoint."""
        return self

    def __exit__(self, *error: object) -> None:
        """Forget the maps."""
        self.close()

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as handle:
                self._maps[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def _only_file(folder: Path) -> Path:
    """The one file of tensors in a folder without an index."""
    single = folder / SINGLE_FILE
    if single.is_file():
        return single
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise refuse("no-tensors", "no .safetensors file", folder, "give a checkpoint folder")
    raise refuse(
        "index-file",
        f"{len(files)} safetensors files and no {INDEX_FILE}",
        folder,
        "fetch the index, or give one file",
    )


def _indexed(folder: Path, headers_only: bool) -> list[Header]:
    """The headers of the files that the index names; index and headers must agree."""
    index = folder / INDEX_FILE
    where = read_json_object(index, "index-file").get("weight_map")
    if not isinstance(where, dict) or not where:
        raise refuse("index-file", "no weight_map", index, "fetch the index again")
    shards: dict[str, list[str]] = {}
    for name, shard in where.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise refuse("index-file", f"{name} in {shard!r}", index, "fetch the index again")
        shards.setdefault(shard, []).append(name)
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise refuse(
            "missing-shard",
            f"{len(missing)} of {len(shards)} files are not there, first {missing[0]}",
            folder,
            "fetch them",
        )
    files = {shard: read_header(folder / shard, headers_only=headers_only) for shard in shards}
    holders: dict[str, list[str]] = {}
    for shard, header in files.items():
        for name in header.tensors:
            holders.setdefault(name, []).append(shard)
    for name, held in holders.items():
        if len(held) > 1:
            found = f"{name} in {' and in '.join(held)}"
            raise refuse("duplicate-tensor", found, folder, "remove the file of another revision")
    for name in {**where, **holders}:
        stated, held = where.get(name, "no file"), holders.get(name, ["no file"])
        if [stated] != held:
            found = f"{name} in {held[0]}, in {stated} by the index"
            raise refuse("index-disagrees", found, folder, "fetch files and index of one revision")
    return [files[shard] for shard in sorted(files)]


def _by_name(
    headers: Iterable[Header], rename: Callable[[str], str] | None, path: Path
) -> dict[str, StoredTensor]:
    """Tensors by published name. Errors: Refusal when two have the same."""
    entries: dict[str, StoredTensor] = {}
    for tensor in (t for header in headers for t in header.tensors.values()):
        name = rename(tensor.name) if rename else tensor.name
        if name in entries:
            first = entries[name]
            raise refuse(
                "duplicate-tensor",
                f"{name} as {first.name} in {first.file.name}"
                f" and as {tensor.name} in {tensor.file.name}",
                path,
                "remove one of them",
            )
        entries[name] = tensor
    return entries


def _headers_file(path: Path) -> tuple[dict[str, Any], list[Header]]:
    raw = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        config, shards = dict(content["config"]), dict(content["shards"])
        headers = {str(shard): dict(header) for shard, header in shards.items()}
    except (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error) as error:
        found = f"no JSON with config and shards ({type(error).__name__}: {error})"
        raise refuse("no-tensors", found, path, "give a folder or a file of headers") from None
    return config, [parse_header(h, Path(shard), start=0) for shard, h in headers.items()]

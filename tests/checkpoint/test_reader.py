"""Files of tensors: read without a copy, given back, and refused when anything is amiss."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from dsv4.checkpoint.reader import INDEX_FILE, Checkpoint
from dsv4.errors import Refusal
from tests.checkpoint.conftest import Minted

CONTENT = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.bytes": np.arange(7, dtype=np.uint8),
    "c": np.array(2.5, np.float32),
    "d": np.arange(-3, 3, dtype=np.int64),
    "empty": np.zeros((0, 5), np.float32),
}


def raw_file(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_come_back_as_stored(tmp_path: Path) -> None:
    save_file(CONTENT, tmp_path / "model.safetensors", metadata={"made": "here"})
    with Checkpoint.open(tmp_path) as stored:
        assert set(stored) == set(CONTENT) and len(stored) == 5
        assert stored.metadata == {"made": "here"}
        assert stored.size_bytes == sum(a.nbytes for a in CONTENT.values())
        for name, array in CONTENT.items():
            found = stored.tensor(name)
            assert found.dtype == array.dtype and found.shape == array.shape
            assert np.array_equal(found, array)


def test_tensors_are_views_of_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    save_file(CONTENT, tmp_path / "one.safetensors")
    stored = Checkpoint.open(tmp_path / "one.safetensors")
    first, second = stored.tensor("a"), stored.tensor("a")
    assert first.__array_interface__["data"][0] == second.__array_interface__["data"][0]
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


def test_arrays_outlive_the_checkpoint(tmp_path: Path) -> None:
    save_file(CONTENT, tmp_path / "one.safetensors")
    with Checkpoint.open(tmp_path / "one.safetensors") as stored:
        array = stored.tensor("a")
    del stored
    assert array.sum() == 66.0


def test_a_tensor_on_an_odd_byte_is_read(tmp_path: Path) -> None:
    header = {"pad": entry("U8", [1], 0, 1), "x": entry("F32", [2], 1, 9)}
    data = b"\x00" + np.array([1.5, -2.0], np.float32).tobytes()
    (tmp_path / "x.safetensors").write_bytes(raw_file(header, data))
    assert Checkpoint.open(tmp_path).tensor("x").tolist() == [1.5, -2.0]


def test_a_made_checkpoint_reads_the_same_through_the_safetensors_library(minted: Minted) -> None:
    stored = Checkpoint.open(minted("nvfp4"))
    assert len(stored.files) > 3
    seen = 0
    for file in stored.files:
        with safe_open(file, framework="numpy") as theirs:
            for name in theirs.keys():  # noqa: SIM118  (it has no iterator)
                part = theirs.get_slice(name)
                assert part.get_dtype() == stored.entry(name).dtype
                assert tuple(part.get_shape()) == stored.entry(name).shape
                if part.get_dtype() in ("F32", "I64", "U8"):
                    assert np.array_equal(theirs.get_tensor(name), stored.tensor(name))
                seen += 1
    assert seen == len(stored)


def test_blocks_hold_every_tensor_once_and_in_order_of_layers(minted: Minted) -> None:
    stored = Checkpoint.open(minted("nextn"))
    blocks = stored.blocks()
    assert set(blocks) == {"", *(f"layers.{n}." for n in range(5)), "mtp.0."}
    assert sorted(n for names in blocks.values() for n in names) == sorted(stored)
    assert all(name.startswith("layers.3.") for name in blocks["layers.3."])
    offsets = [(stored.entry(n).file, stored.entry(n).offset) for n in blocks["layers.3."]]
    assert offsets == sorted(offsets)


def resident_bytes(file: Path) -> int:
    """How much of a file's mapping is in this process's memory."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            here = line.endswith(str(file))
        elif here and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def sparse_checkpoint(folder: Path, tensors: int, size_bytes: int) -> Path:
    """A file of tensors that takes no room on disk."""
    header = {
        f"layers.{n}.x": entry("U8", [size_bytes], n * size_bytes, (n + 1) * size_bytes)
        for n in range(tensors)
    }
    file = folder / "model.safetensors"
    with file.open("wb") as handle:
        handle.write(raw_file(header))
        handle.truncate(handle.tell() + tensors * size_bytes)
    return file


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's smaps")
def test_streaming_gives_back_each_tensor_before_the_next(tmp_path: Path) -> None:
    size = 1 << 24
    file = sparse_checkpoint(tmp_path, tensors=6, size_bytes=size)
    stored = Checkpoint.open(tmp_path)
    most = 0
    for _, bits in stored.stream():
        assert int(bits[::4096].sum()) == 0
        most = max(most, resident_bytes(file))
    assert size <= most < 2 * size
    assert resident_bytes(file) < size // 16
    assert int(stored.tensor("layers.0.x")[-1]) == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's smaps")
def test_opening_reads_no_data(tmp_path: Path) -> None:
    file = sparse_checkpoint(tmp_path, tensors=3, size_bytes=1 << 36)
    stored = Checkpoint.open(tmp_path)
    assert stored.size_bytes == 3 << 36
    assert resident_bytes(file) == 0


GOOD = raw_file({"x": entry("F32", [2], 0, 8)}, bytes(8))
# Content of one file; the rule that it breaks.
DAMAGED: dict[str, tuple[str, bytes]] = {
    "nothing": ("truncated-shard", b""),
    "half a length": ("truncated-shard", GOOD[:5]),
    "half a header": ("truncated-shard", GOOD[:20]),
    "half the data": ("truncated-shard", GOOD[:-4]),
    "more than the data": ("shard-length", GOOD + b"\x00"),
    "a length that no header has": ("shard-header", b"\xff" * 8 + GOOD[8:]),
    "no JSON": ("shard-header", raw_file(b"{]")),
    "not UTF-8": ("shard-header", raw_file(b'{"\xff": 1}')),
    "a list": ("shard-header", raw_file(b"[]")),
    "deep nesting": ("shard-header", raw_file(b"[" * 200_000)),
    "no offsets": ("shard-header", raw_file({"x": {"dtype": "F32", "shape": [2]}})),
    "a negative axis": ("shard-header", raw_file({"x": entry("F32", [-2], 0, 8)}, bytes(8))),
    "an axis of text": ("shard-header", raw_file({"x": entry("F32", ["2"], 0, 8)}, bytes(8))),
    "remarks that are none": ("shard-header", raw_file({"__metadata__": [1]})),
    "an unknown type": ("unknown-dtype", raw_file({"x": entry("F8_E5M2", [8], 0, 8)}, bytes(8))),
    "a length beside the shape": ("tensor-length", raw_file({"x": entry("F32", [3], 0, 8)})),
    "offsets backwards": ("tensor-length", raw_file({"x": entry("F32", [2], 8, 0)}, bytes(8))),
    "an overlap": (
        "tensor-overlap",
        raw_file({"x": entry("U8", [8], 0, 8), "y": entry("U8", [8], 4, 12)}, bytes(12)),
    ),
    "a gap": (
        "tensor-overlap",
        raw_file({"x": entry("U8", [4], 0, 4), "y": entry("U8", [4], 8, 12)}, bytes(12)),
    ),
    "a name twice": (
        "duplicate-tensor",
        raw_file(
            b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
            bytes(2),
        ),
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_by_the_rules_name(name: str, tmp_path: Path) -> None:
    rule, content = DAMAGED[name]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(Refusal, match=f"^rule {rule}:") as refused:
        Checkpoint.open(tmp_path)
    assert str(file) in str(refused.value)


def rewrite_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    change(index["weight_map"])
    (folder / INDEX_FILE).write_text(json.dumps(index))


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number]


def cut(folder: Path) -> None:
    file = shard(folder, 1)
    file.write_bytes(file.read_bytes()[:-1000])


def misplace(weights: dict[str, str]) -> None:
    files = sorted(set(weights.values()))
    name = next(n for n, file in weights.items() if file == files[0])
    weights[name] = files[1]


# Changes to a folder of a made checkpoint; the rule, and a word of the message.
BROKEN_FOLDERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "a file is missing": ("missing-shard", "00002", lambda f: shard(f, 1).unlink()),
    "a file is cut": ("truncated-shard", "00002", cut),
    "a file of another place": (
        "duplicate-tensor", "and in", lambda f: shutil.copy(shard(f, 0), shard(f, 2))),
    "the index is missing": ("index-file", "no model", lambda f: (f / INDEX_FILE).unlink()),
    "the index is no JSON": ("index-file", "JSON", lambda f: (f / INDEX_FILE).write_text("{")),
    "the index has no map": (
        "index-file", "weight_map", lambda f: (f / INDEX_FILE).write_text("{}")),
    "the index leaves the folder": (
        "index-file", "..",
        lambda f: rewrite_index(f, lambda w: w.update({"norm.weight": "../norm.safetensors"}))),
    "the index omits a tensor": (
        "index-disagrees", "norm.weight",
        lambda f: rewrite_index(f, lambda w: w.pop("norm.weight"))),
    "the index knows a tensor more": (
        "index-disagrees", "no.weight",
        lambda f: rewrite_index(f, lambda w: w.update({"no.weight": min(w.values())}))),
    "the index misplaces a tensor": (
        "index-disagrees", "00002", lambda f: rewrite_index(f, misplace)),
    "no tensors at all": (
        "no-tensors", "no .safetensors",
        lambda f: [file.unlink() for file in f.iterdir() if file.name != "config.json"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_a_broken_folder_is_refused_by_the_rules_name(
    name: str, minted: Minted, tmp_path: Path
) -> None:
    rule, word, change = BROKEN_FOLDERS[name]
    folder = tmp_path / "copy"
    shutil.copytree(minted("official"), folder)
    change(folder)
    with pytest.raises(Refusal, match=f"^rule {rule}:") as refused:
        Checkpoint.open(folder)
    assert word in str(refused.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="rule no-tensors"):
        Checkpoint.open(tmp_path / "nowhere")


def test_a_tensor_that_is_not_stored_is_refused(tmp_path: Path) -> None:
    save_file(CONTENT, tmp_path / "model.safetensors")
    with pytest.raises(Refusal, match=r"rule unknown-tensor(.|\n)*'aa'"):
        Checkpoint.open(tmp_path).tensor("aa")


def test_files_that_end_after_their_headers_are_read_when_asked(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw_file({"x": entry("F32", [2], 0, 8)}))
    with pytest.raises(Refusal, match="rule truncated-shard"):
        Checkpoint.open(tmp_path)
    stored = Checkpoint.open(tmp_path, headers_only=True)
    assert stored.entry("x").shape == (2,)
    with pytest.raises(Refusal, match="rule headers-only"):
        stored.tensor("x")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_of_headers_is_read(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    shards = {"1.safetensors": {"x": entry("BF16", [2, 3], 0, 12)}}
    file = tmp_path / "headers"
    file.write_bytes(pack(json.dumps({"config": {"dim": 1}, "shards": shards}).encode()))
    stored = Checkpoint.open(file)
    assert (stored.entry("x").dtype, stored.entry("x").shape) == ("BF16", (2, 3))
    assert stored.config()[0] == {"dim": 1}
    with pytest.raises(Refusal, match="rule headers-only"):
        stored.tensor("x")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\x1f\x8bbroken", b'{"config":1}'])
def test_a_file_of_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "headers").write_bytes(content)
    with pytest.raises(Refusal, match="rule no-tensors"):
        Checkpoint.open(tmp_path / "headers")

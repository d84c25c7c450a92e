"""Loading: what cannot be is refused before anything is uploaded, and nothing stays half-loaded."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.checkpoint.mint import plan_mint
from dsv4.engine import opening
from dsv4.engine.engine import Engine
from dsv4.engine.source import open_source
from dsv4.engine.weights import ExpertKind, size_bytes
from dsv4.errors import DeviceError, Refusal
from dsv4.runtime.hostdevice import HostDevice
from tests.engine.engines import same_bytes, tokens
from tests.goldens import golden_folder

TINY = golden_folder("tiny-s")


class Watched(HostDevice):
    """A host device that keeps count of its arrays, and may be small or wear out."""

    def __init__(self, *, free_bytes: int | None = None, arrays: int | None = None) -> None:
        super().__init__()
        self.free_bytes, self.left = free_bytes, arrays
        self.made: list[weakref.ref[np.ndarray]] = []

    def memory_bytes(self) -> tuple[int, int]:
        free, total = super().memory_bytes()
        return (free if self.free_bytes is None else self.free_bytes), total

    def empty(self, *args: Any) -> np.ndarray:
        return self._kept(super().empty(*args))

    def to_device(self, array: np.ndarray) -> np.ndarray:
        return self._kept(super().to_device(array))

    def _kept(self, array: np.ndarray) -> np.ndarray:
        if self.left is not None:
            if self.left == 0:
                raise MemoryError("out of memory to allocate 512 bytes")
            self.left -= 1
        self.made.append(weakref.ref(array))
        return array

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.made)


def copied(to: Path) -> Path:
    folder = Path(shutil.copytree(TINY, to / "model", copy_function=shutil.copyfile))
    (folder / "golden.safetensors").unlink()
    return folder


def damage(folder: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    part = np.frombuffer(raw, np.uint8, end - begin, 8 + length + begin).copy()
    change(part)
    raw[8 + length + begin : 8 + length + end] = part.tobytes()
    file.write_bytes(raw)


def set_byte(place: int, value: int) -> Callable[[np.ndarray], None]:
    def change(part: np.ndarray) -> None:
        part[place] = value

    return change


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_seq": 62}, "61"),
        ({"max_seq": 0}, "max_seq"),
        ({"split_at": "2"}, "DSV4_SPLIT_AT"),
        ({"drafter": "mtp"}, "DSV4_DRAFTER"),
        ({"decode_path": "slow"}, "DSV4_DECODE_PATH"),
    ],
)
def test_what_headers_and_arms_show_is_refused_before_the_first_upload(
    options: dict[str, Any], says: str
) -> None:
    device = Watched()
    with pytest.raises(Refusal, match=says):
        Engine.load(TINY, (device,), **options)
    assert not device.made


@pytest.mark.parametrize("split", ["0", "4", "3,2", "2,2", "1,2,3"])
def test_a_split_leaves_no_stage_without_layers(split: str) -> None:
    devices = (0,) * (2 if split in "04" else 3)
    with pytest.raises(Refusal, match="DSV4_SPLIT_AT"):
        Engine.load(TINY, devices, backend="host", split_at=split)


def test_the_targets_of_a_drafter_are_on_its_stage() -> None:
    with pytest.raises(Refusal, match="layer 2 is a target"):
        Engine.load(TINY, (0, 0), backend="host", split_at=3, drafter="dspark")


def test_a_model_needs_a_device() -> None:
    with pytest.raises(Refusal, match="no devices"):
        Engine.load(TINY, ())


def test_too_little_memory_is_told_with_the_table_before_the_first_upload() -> None:
    device = Watched(free_bytes=2**30 + 10**6)
    with pytest.raises(Refusal, match="GB free") as refusal:
        Engine.load(TINY, (device,), max_seq=32)
    message = str(refusal.value)
    assert "weights GB" in message and "0..3" in message and not device.made


def test_a_device_that_runs_out_in_the_middle_keeps_nothing() -> None:
    device = Watched(arrays=150)
    with pytest.raises(DeviceError, match="ran out of memory") as error:
        Engine.load(TINY, (device,), max_seq=32)
    assert "weights GB" in str(error.value) and len(device.made) == 150
    del error
    assert device.alive == 0


@pytest.mark.parametrize(
    ("name", "place", "value", "rule"),
    [
        ("layers.2.attn.wkv.scale", 0, 0xFF, "e8m0-nan"),
        ("layers.1.attn.wq_a.weight", 300, 0x7F, "e4m3-nan"),
        ("layers.0.ffn.experts.3.w2.scale", 5, 0xFF, "e8m0-nan"),
        ("layers.3.attn_norm.weight", 3, 0x7F, "finite-weights"),
        ("layers.0.ffn.gate.tid2eid", 16, 9, "expert-ids"),
    ],
)
def test_a_bad_value_is_named_with_its_tensor_and_index_and_nothing_stays(
    name: str, place: int, value: int, rule: str, tmp_path: Path
) -> None:
    folder, device = copied(tmp_path), Watched()

    def change(part: np.ndarray) -> None:
        part[place] = value
        if name.endswith("norm.weight"):
            part[place - 1] |= 0x80

    damage(folder, name, change)
    with pytest.raises(Refusal, match=rule) as refusal:
        Engine.load(folder, (device,), max_seq=32)
    assert f"{name}[" in str(refusal.value)
    del refusal
    assert device.alive == 0


def test_a_truncated_file_and_a_missing_tensor_are_refused(tmp_path: Path) -> None:
    folder, device = copied(tmp_path), Watched()
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(Refusal, match="truncated-shard"):
        Engine.load(folder, (device,))
    file.write_bytes(whole.replace(b"layers.3.attn.wkv.weight", b"layers.3.attn.wkx.weight"))
    with pytest.raises(Refusal):
        Engine.load(folder, (device,))
    assert not device.made


def test_stages_hold_what_the_placement_counted() -> None:
    for arms in ({}, {"dense_arm": "bf16"}):
        engine = Engine.load(TINY, (0, 0), backend="host", max_seq=32, **arms)
        for stage, plan in zip(engine.stages, engine.placement.stages, strict=True):
            assert stage.loaded_bytes == plan.weight_bytes + plan.table_bytes
            assert [w.layer for w in stage.layers] == list(range(*plan.layers))
        rows = engine.vram_report()
        assert [r.loaded_bytes for r in rows] == [s.loaded_bytes for s in engine.stages]
        assert all(0 < r.free_bytes <= r.total_bytes for r in rows)


def test_a_plan_is_minted_on_the_device_to_the_bytes_of_its_files(tmp_path: Path) -> None:
    from dsv4.checkpoint.mint import write_checkpoint

    plan, ids = plan_mint("tiny", "nextn", seed=5), tokens(11)
    write_checkpoint(plan, tmp_path / "files", device=HostDevice())
    made = Engine.load(plan, backend="host", max_seq=40)
    read = Engine.load(tmp_path / "files", backend="host", max_seq=40)
    a, b = made.forward(ids), read.forward(ids)
    assert a is not None and b is not None and same_bytes(a.logits, b.logits)
    assert same_bytes(made.mtp_logits_last(a.h_last, ids), read.mtp_logits_last(b.h_last, ids))
    assert size_bytes(made.stages[0].layers) == size_bytes(read.stages[0].layers)


@pytest.mark.parametrize(
    ("layout", "trunk", "tail"), [("nvfp4", "nvfp4", "mxfp4"), ("nextn", "mxfp4", "mxfp4")]
)
def test_stored_names_decide_how_experts_are_multiplied(layout: str, trunk: str, tail: str) -> None:
    engine = Engine.load(plan_mint("tiny", layout), backend="host", max_seq=16)
    kinds = {w.experts.kind for w in engine.stages[0].layers}
    assert kinds == {ExpertKind(trunk)}
    assert engine.mtp is not None and engine.mtp.layer.experts.kind is ExpertKind(tail)


def test_a_failed_load_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source, real = open_source(TINY), opening.rope_tables

    def fail(*_: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "rope_tables", fail)
        with pytest.raises(DeviceError):
            Engine.load(source, backend="host", max_seq=16)
    assert opening.rope_tables is real
    assert Engine.load(source, backend="host", max_seq=16).forward([1, 2]) is not None


def test_a_state_that_does_not_fit_is_told_with_its_size() -> None:
    device = Watched()
    engine = Engine.load(TINY, (device,), max_seq=32)
    device.left = 3
    with pytest.raises(DeviceError, match="32 positions"):
        engine.alloc_decode_state()
    device.left = None
    assert engine.forward([1, 2, 3]) is not None

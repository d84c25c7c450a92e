"""Made checkpoints: the same from files and on a device, healthy, complete or not there at all."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dsv4.checkpoint import mint, recipes
from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.mint import MintPlan, plan_mint, write_checkpoint
from dsv4.checkpoint.published import LAYOUTS
from dsv4.checkpoint.reader import INDEX_FILE, Checkpoint
from dsv4.errors import LaunchError, Refusal, SpecError
from dsv4.runtime.device import Device
from dsv4.runtime.hostdevice import HostDevice
from lab import testing
from oracle.blocks import decode_fp8_block, decode_mxfp4
from oracle.formats import decode, encode
from oracle.mint import mint_bf16
from tests.checkpoint.conftest import Minted

ROOT = Path(__file__).parents[2]
HOST = HostDevice()


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return testing.cuda() if request.param == "cuda" else HOST


@pytest.mark.parametrize("layout", ["0731", "nvfp4"])
def test_tensors_made_on_a_device_have_the_bytes_of_the_files(
    layout: str, minted: Minted, device: Device
) -> None:
    stored = Checkpoint.open(minted(layout))
    plan = plan_mint("tiny", layout, seed=1)
    for name in plan.entries:
        made = device.to_numpy(plan.tensor(device, name))
        assert made.shape == stored.entry(name).shape
        assert made.tobytes() == stored.tensor(name).tobytes(), name


def test_a_bank_is_made_in_one_launch_into_a_slab(minted: Minted, device: Device) -> None:
    stored, plan = Checkpoint.open(minted("0731")), plan_mint("tiny", "0731", seed=1)
    parts = [f"{w}.{kind}" for w in ("w1", "w2", "w3") for kind in ("weight", "scale")]
    sizes = [plan.entries[f"layers.0.ffn.experts.0.{part}"].size_bytes for part in parts]
    # One row an expert, its matrices side by side, from an odd byte on.
    slab = device.xp.zeros((8, sum(sizes) + 3), np.uint8)
    begin = 1
    for part, size in zip(parts, sizes, strict=True):
        names = [f"layers.0.ffn.experts.{e}.{part}" for e in range(8)]
        plan.tensors(device, names, out=slab[:, begin : begin + size])
        begin += size
    rows = device.to_numpy(slab)
    for e in range(8):
        whole = [stored.tensor(f"layers.0.ffn.experts.{e}.{part}").tobytes() for part in parts]
        assert rows[e].tobytes() == b"\0" + b"".join(whole) + b"\0\0"


def test_tensors_of_two_kinds_are_not_made_together() -> None:
    plan = plan_mint("tiny", "nvfp4")
    for names in (
        ["layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale"],
        ["layers.0.ffn.experts.0.w1.weight_scale_2", "layers.0.ffn.experts.0.w2.weight_scale_2"],
    ):
        with pytest.raises(SpecError, match="filled differently"):
            plan.tensors(HOST, names)


def test_memory_whose_elements_lie_apart_is_refused() -> None:
    plan = plan_mint("tiny", "0731")
    with pytest.raises(LaunchError, match="contiguous rows"):
        apart = np.zeros((8, 512), np.uint16)[:, ::2]
        plan.tensor(HOST, "layers.0.ffn.gate.weight", out=apart)
    with pytest.raises(LaunchError, match="lie apart"):
        plan.tensor(HOST, "layers.0.ffn.gate.weight", out=np.zeros((256, 8), np.uint16).T)


def test_memory_of_another_size_or_type_is_refused() -> None:
    plan = plan_mint("tiny", "0731")
    with pytest.raises(ValueError, match="reshape"):
        plan.tensor(HOST, "norm.weight", out=np.zeros(255, np.uint16))
    with pytest.raises(LaunchError, match="dtype"):
        plan.tensor(HOST, "norm.weight", out=np.zeros(256, np.float32))


def test_content_depends_on_seed_and_name_alone() -> None:
    name = "layers.1.attn.wkv.weight"
    tiny = plan_mint("tiny", "0731", seed=5).tensor(HOST, name)
    assert np.array_equal(plan_mint("tiny", "official", seed=5, layers=2).tensor(HOST, name), tiny)
    assert np.array_equal(plan_mint("tiny", "nvfp4", seed=5, experts=3).tensor(HOST, name), tiny)
    assert (plan_mint("tiny", "0731", seed=6).tensor(HOST, name) != tiny).mean() > 0.9
    other = plan_mint("tiny", "0731", seed=5).tensor(HOST, "layers.2.attn.wkv.weight")
    assert (other != tiny).mean() > 0.9


def test_content_is_the_same_in_every_release() -> None:
    # Worked out once from the definition: SHA-256 of "7/norm.weight", Philox, sums of four.
    plan = plan_mint("tiny", "0731", seed=7)
    key = mint.key_of(7, "norm.weight")
    assert key == int.from_bytes(bytes.fromhex("203828e75f89cf23"), "little", signed=True)
    scale = 0.1 / math.sqrt((2**32 - 1) / 3)
    expected = encode(mint_bf16(256, [key], 0, 1.0, scale), "bf16").reshape(-1)
    assert np.array_equal(plan.tensor(HOST, "norm.weight"), expected)


def deviation(plan: MintPlan, name: str) -> float:
    """The root mean square of a tensor's values."""
    entry = plan.entries[name]
    bits = plan.tensor(HOST, name)
    if entry.dtype in ("BF16", "F32"):
        values = decode(bits, {"BF16": "bf16", "F32": "f32"}[entry.dtype])
    else:
        scales = plan.tensor(HOST, name.removesuffix("weight") + "scale")
        values = (decode_fp8_block if entry.dtype == "F8_E4M3" else decode_mxfp4)(bits, scales)
    return float(np.sqrt(np.mean(values**2)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.attn.wq_a.weight", 1 / math.sqrt(4096)),
        ("layers.0.ffn.shared_experts.w2.weight", 1 / math.sqrt(2048)),
        ("layers.2.ffn.experts.11.w1.weight", 1.5 / math.sqrt(4096)),
        ("layers.2.ffn.experts.11.w2.weight", 1.5 / math.sqrt(2048)),
        ("layers.2.attn.compressor.wgate.weight", 1 / math.sqrt(4096)),
        ("layers.2.hc_attn_fn", 1 / math.sqrt(4 * 4096)),
        ("layers.3.attn.compressor.ape", 0.5),
        ("layers.3.ffn.gate.bias", 0.3),
        ("mtp.2.confidence_head.proj.weight", 1 / math.sqrt(4352)),
        ("layers.3.attn_norm.weight", math.sqrt(1.01)),
    ],
)
def test_published_widths_have_healthy_deviations(name: str, expected: float) -> None:
    plan = plan_mint("flash", "0731", layers=4, experts=160)
    rel = 0.2 if plan.entries[name].size_bytes < 1000 else 0.1
    assert deviation(plan, name) == pytest.approx(expected, rel=rel)


def test_rms_of_codes_are_those_of_the_formats() -> None:
    ways = np.ones(1)
    for _ in range(4):
        ways = np.convolve(ways, np.ones(256))
    codes = decode(encode(np.arange(ways.size) - 510.0, "e4m3"), "e4m3")
    assert recipes.E4M3_RMS == pytest.approx(math.sqrt((codes**2 @ ways) / ways.sum()), rel=1e-12)
    e2m1 = decode(np.arange(16, dtype=np.uint8), "e2m1")
    assert recipes.E2M1_RMS == pytest.approx(math.sqrt((e2m1**2).mean()), rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", ["tiny", "small", "flash", "pro"])
def test_scale_bytes_lie_where_published_ones_lie(size: str, layout: str) -> None:
    plan = plan_mint(size, layout, experts=10)
    for name, entry in plan.entries.items():
        made = recipes.recipe(plan.config, name, entry)
        if entry.dtype == "F8_E8M0":
            # The lowest byte is base - 1, the highest base + 2.
            assert 110 <= made.scalars["base"] - 1 and made.scalars["base"] + 2 <= 125
            assert 0 <= made.scalars["threshold"] <= 2**14
        if name.endswith("weight_scale_2"):
            assert 2.0**-15 <= made.value <= 2.0**-10


def test_shards_keep_the_order_of_blocks_and_the_limit() -> None:
    plan = plan_mint("flash", "0731")
    shards = plan.shards()
    assert [n for names in shards for n in names] == list(plan.entries)
    sizes = [sum(plan.entries[n].size_bytes for n in names) for names in shards]
    assert max(sizes) <= 4_000_000_000
    assert len(shards) == math.ceil(plan.size_bytes / 4_000_000_000)


def test_index_and_headers_say_what_was_made(minted: Minted) -> None:
    folder = minted("0731-nvfp4")
    index = json.loads((folder / INDEX_FILE).read_text())
    stored = Checkpoint.open(folder)
    assert index["metadata"]["total_size"] == stored.size_bytes
    assert max(f.stat().st_size for f in stored.files) < 3_200_000
    assert all(stored.tensor(n).flags.aligned for n in stored)
    assert stored.metadata["minted"] == "tiny 0731-nvfp4 seed 1"
    manifest = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert list(manifest["quantized_layers"]) == [f"layers.{n}.ffn.experts" for n in range(5)]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(Refusal, match="rule mint-target"):
        write_checkpoint(plan_mint("tiny", "official"), tmp_path, device=HOST)
    assert [f.name for f in tmp_path.iterdir()] == ["letter"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    plan = plan_mint("tiny", "official", layers=1, experts=2)
    write_checkpoint(plan, tmp_path, device=HOST)
    assert open_artifact(tmp_path).config.n_layers == 1


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def stop(size_bytes: int) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "deep" / "out"
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(plan_mint("tiny", "official"), out, device=HOST, progress=stop)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_disk_that_is_too_small_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=70_000_000)
    monkeypatch.setattr(mint.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Refusal, match=r"rule mint-target(.|\n)*0.1 GB free"):
        write_checkpoint(plan_mint("tiny", "official"), tmp_path / "out", device=HOST)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("layers", "experts"), [(6, None), (0, None), (None, 1)])
def test_sizes_that_cannot_be_are_refused(layers: int | None, experts: int | None) -> None:
    with pytest.raises(Refusal, match="rule mint-size"):
        plan_mint("tiny", "0731", layers=layers, experts=experts)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_shortened_trunk_keeps_its_drafter(layers: int) -> None:
    plan = plan_mint("flash", "0731", layers=layers, experts=6)
    assert plan.config.n_layers == layers and plan.config.stages == 3
    taps = plan.config.dspark_target_layer_ids
    assert taps == tuple(range(layers))[-3:]
    assert plan.entries["mtp.0.main_proj.weight"].shape == (4096, 4096 * len(taps))


@pytest.mark.stress
def test_a_large_checkpoint_is_made_and_streamed_in_little_memory(tmp_path: Path) -> None:
    program = (
        "import sys, re; from pathlib import Path\n"
        "from dsv4.checkpoint.census import open_artifact\n"
        "from dsv4.checkpoint.mint import plan_mint, write_checkpoint\n"
        "from dsv4.checkpoint.values import check_all_values\n"
        "from dsv4.runtime.hostdevice import HostDevice\n"
        "def kb(what):\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    return int(re.search(what + r':\\s+(\\d+)', status)[1])\n"
        "out = Path(sys.argv[1])\n"
        "plan = plan_mint('flash', 'official', layers=1, experts=6)\n"
        "write_checkpoint(plan, out, device=HostDevice())\n"
        "made = kb('VmHWM')\n"
        "artifact = open_artifact(out)\n"
        "check_all_values(artifact, progress=lambda n: peak.append(kb('RssAnon')))\n"
        "print(plan.size_bytes, made, kb('VmHWM'), max(peak), kb('RssFile'))\n"
    ).replace("out = Path", "peak = []\nout = Path", 1)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    size, made, peak, own, mapped = map(int, done.stdout.split())
    assert size > 2_000_000_000
    # Pieces of 64 MiB while making; the largest tensor, 1.06 GB, is mapped while it is read.
    assert made < 600_000
    assert peak < 1_800_000
    assert own < 600_000
    assert mapped < 200_000

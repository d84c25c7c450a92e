"""Values that no checkpoint may hold, found by name and index in real files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsv4.checkpoint.census import open_artifact
from dsv4.checkpoint.expected import Entry
from dsv4.checkpoint.published import LAYOUTS
from dsv4.checkpoint.values import check_all_values, check_values, is_lossless_cast
from dsv4.errors import Refusal
from oracle.blocks import decode_mxfp4, decode_nvfp4
from tests.checkpoint.conftest import Minted

ROUTED = "layers.2.ffn.experts.3.w1"
TABLE = "layers.0.ffn.gate.tid2eid"
Edit = Callable[[np.ndarray], None]


def put(index: tuple[int, ...], value: float) -> Edit:
    def edit(bits: np.ndarray) -> None:
        bits[index] = value

    return edit


def edited(folder: Path, to: Path, name: str, edit: Edit) -> Path:
    """A copy of a checkpoint with one tensor changed in its file."""
    shutil.copytree(folder, to)
    entry = open_artifact(to).tensors.entry(name)
    bits = np.array(open_artifact(to).tensors.tensor(name))
    edit(bits)
    with entry.file.open("r+b") as handle:
        handle.seek(entry.offset)
        handle.write(bits.tobytes())
    return to


# Tensor of tiny nvfp4, what is put into it; the rule, and how the message says where.
BROKEN: dict[str, tuple[str, Edit, str, str]] = {
    "NaN in an FP8 scale": (
        "layers.1.attn.wq_b.scale", put((3, 0), 0xFF), "e8m0-nan", "[3, 0] is 0xff"),
    "NaN in an MXFP4 scale": (
        "mtp.0.ffn.experts.7.w2.scale", put((200, 3), 0xFF), "e8m0-nan", "[200, 3] is 0xff"),
    "NaN in FP8 codes": (
        "layers.1.attn.wo_b.weight", put((255, 255), 0x7F), "e4m3-nan", "[255, 255] is 0x7f"),
    "negative NaN in FP8 codes": (
        "layers.1.attn.wo_b.weight", put((0, 9), 0xFF), "e4m3-nan", "[0, 9] is 0xff"),
    "NaN in an NVFP4 scale": (
        f"{ROUTED}.weight_scale", put((5, 1), 0x7F), "e4m3-nan", "[5, 1] is 0x7f"),
    "a negative NVFP4 scale": (
        f"{ROUTED}.weight_scale", put((5, 1), 0xB8), "negative-scale", "[5, 1] is 0xb8"),
    "NaN in a norm": (
        "layers.4.attn_norm.weight", put((17,), 0x7FC1), "finite-weights", "[17] is 0x7fc1"),
    "infinity in the head": (
        "head.weight", put((511, 255), 0xFF80), "finite-weights", "[511, 255] is 0xff80"),
    "NaN in a mixer": (
        "layers.0.hc_ffn_fn", put((23, 1023), np.nan), "finite-weights", "[23, 1023] is nan"),
    "an infinite sink": (
        "layers.0.attn.attn_sink", put((1,), -np.inf), "finite-weights", "[1] is -inf"),
    "a second scale of NaN": (f"{ROUTED}.weight_scale_2", put((), np.nan), "scale-2", "is nan"),
    "a second scale of zero": (f"{ROUTED}.weight_scale_2", put((), 0.0), "scale-2", "is 0.0"),
    "a negative second scale": (f"{ROUTED}.weight_scale_2", put((), -0.5), "scale-2", "is -0.5"),
    "a second scale between powers": (
        f"{ROUTED}.weight_scale_2", put((), 0.75), "scale-2-power", "is 0.75"),
    "an expert that is none": (TABLE, put((300, 1), 8), "expert-ids", "[300, 1] is 8"),
    "a negative expert": (TABLE, put((0, 0), -1), "expert-ids", "[0, 0] is -1"),
    "an expert twice in a row": (TABLE, put((511,), 6), "distinct-experts", "[511] is [6, 6]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_value_is_refused_by_rule_name_and_index(
    name: str, minted: Minted, tmp_path: Path
) -> None:
    tensor, edit, rule, place = BROKEN[name]
    artifact = open_artifact(edited(minted("nvfp4"), tmp_path / "copy", tensor, edit))
    with pytest.raises(Refusal, match=f"^rule {rule}:") as refused:
        check_all_values(artifact)
    assert f"{tensor}{place.partition(' ')[0] if '[' in place else '[]'}" in str(refused.value)
    assert place in str(refused.value)
    assert artifact.tensors.entry(tensor).file.name in str(refused.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_made_checkpoint_holds_good_values_only(layout: str, minted: Minted) -> None:
    seen: list[int] = []
    artifact = open_artifact(minted(layout))
    check_all_values(artifact, progress=seen.append)
    assert sum(seen) == artifact.census.size_bytes


def test_a_second_scale_between_powers_is_fine_where_it_stays_apart() -> None:
    entry = Entry("F32", (), "routed experts")
    check_values("x.weight_scale_2", entry, np.array(0.75, np.float32), n_experts=1, where="f",
                 exact=False)  # fmt: skip


def test_scales_at_both_ends_of_their_range_are_fine() -> None:
    for value in (0x00, 0xFE):
        bits = np.full((3, 2), value, np.uint8)
        check_values("x.scale", Entry("F8_E8M0", (3, 2), "a"), bits, n_experts=1, where="f")
    tiny = np.array(2.0**-149, np.float32)
    check_values("x.weight_scale_2", Entry("F32", (), "a"), tiny, n_experts=1, where="f")


def test_the_last_element_of_a_large_tensor_is_looked_at() -> None:
    bits = np.zeros((1 << 22) + 5, np.uint16)
    bits[-1] = 0x7F80
    with pytest.raises(Refusal, match=re.escape(f"x[{bits.size - 1}] is 0x7f80")):
        check_values("x", Entry("BF16", bits.shape, "a"), bits, n_experts=1, where="f")


def test_the_published_restatement_of_scales_is_recognised(minted: Minted) -> None:
    tensors = open_artifact(minted("nvfp4")).tensors
    scales = np.array(tensors.tensor(f"{ROUTED}.weight_scale"))
    second = float(tensors.tensor(f"{ROUTED}.weight_scale_2"))
    assert is_lossless_cast(scales, second)
    assert not is_lossless_cast(scales, 1.5 * second)
    odd = scales.copy()
    odd[0, 1] -= 8
    assert not is_lossless_cast(odd, second)
    assert not is_lossless_cast(scales | 1, second)
    assert not is_lossless_cast(scales * 0, second)
    # Below 2^-6 E4M3 has three powers of two left.
    assert is_lossless_cast(np.array([[1, 1, 2, 2, 4, 4]], np.uint8), second)
    assert not is_lossless_cast(np.array([[3, 3, 2, 2]], np.uint8), second)


def test_both_layouts_of_one_seed_are_the_same_weights(minted: Minted) -> None:
    mxfp4, nvfp4 = (open_artifact(minted(layout)).tensors for layout in ("nextn", "nvfp4"))
    shared = [n for n in mxfp4 if n in nvfp4]
    assert len(shared) == 508 - 5 * 8 * 3
    assert all(np.array_equal(mxfp4.tensor(n), nvfp4.tensor(n)) for n in shared)
    for expert in range(8):
        for w in ("w1", "w2", "w3"):
            at = f"layers.3.ffn.experts.{expert}.{w}."
            ours = decode_mxfp4(mxfp4.tensor(f"{at}weight"), mxfp4.tensor(f"{at}scale"))
            theirs = decode_nvfp4(
                nvfp4.tensor(f"{at}weight"),
                nvfp4.tensor(f"{at}weight_scale"),
                float(nvfp4.tensor(f"{at}weight_scale_2")),
            )
            assert np.array_equal(ours, theirs)

"""Checkpoint layouts: what is decoded, that layouts agree, and what is refused."""

import dataclasses

import numpy as np
import pytest

from oracle.census import TensorError, census, lineage
from oracle.decoding import decode_weights
from oracle.weights import in_precision
from tests.goldens import golden


def stored(**changes):
    """tiny-s with tensors replaced; None removes one. Dots are written as two underscores."""
    tensors = dict(golden("tiny-s").tensors)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors


def decoded(tensors):
    return decode_weights(golden("tiny-s").config, tensors)


def as_nvfp4(tensors):
    """The trunk's experts cast from MXFP4 without loss: scales twice over, one power for all."""
    cast = {}
    for name, (dtype, bits) in tensors.items():
        if not name.startswith("layers.") or ".experts." not in name or "shared" in name:
            cast[name] = (dtype, bits)
        elif name.endswith(".weight"):
            at = name.removesuffix("weight")
            scales = tensors[f"{at}scale"][1].astype(int) - 127
            second = int(scales.max()) - 8
            assert scales.min() - second >= -6  # normal E4M3 powers: no subnormal code needed
            codes = ((scales - second + 7) << 3).astype(np.uint8)
            cast[name] = ("U8", bits)
            cast[f"{at}weight_scale"] = ("F8_E4M3", codes.repeat(2, axis=1))
            cast[f"{at}weight_scale_2"] = ("F32", np.array(2.0**second, np.float32))
            cast[f"{at}input_scale"] = ("F32", np.array(1.0, np.float32))
    return cast


def test_a_lossless_nvfp4_cast_decodes_to_the_same_weights():
    tensors = stored()
    plain, cast = decoded(tensors), decoded(as_nvfp4(tensors))
    for a, b in zip(plain.blocks, cast.blocks, strict=True):
        for old, new in zip(a.moe.experts, b.moe.experts, strict=True):
            for part in ("w1", "w2", "w3"):
                x, y = getattr(old, part), getattr(new, part)
                assert (x.group, y.group) == (32, 16)
                assert x.values.tobytes() == y.values.tobytes()
    # The drafter's experts stay MXFP4 beside them.
    assert cast.drafter.stages[0].moe.experts[0].w1.group == 32


def test_weights_keep_their_kind_and_shape():
    w = decoded(stored())
    attention = w.blocks[1].attention
    assert attention.wo_a.kind == "bf16" and attention.wo_a.values.shape == (2, 128, 256)
    assert attention.wq_a.kind == "fp8" and attention.indexer.wq_b.kind == "fp8"
    assert attention.indexer.weights_proj.kind == "bf16"
    assert attention.compressor.wkv.kind == w.head.kind == w.blocks[0].moe.gate.kind == "island"
    assert w.blocks[0].moe.table is not None and w.blocks[0].moe.bias is None
    assert w.blocks[1].moe.table is None and w.blocks[1].moe.bias is not None
    assert len(w.drafter.stages) == 2 and w.nextn is None


def test_a_weight_is_its_code_times_its_scale():
    codes, scales = (stored()[f"layers.0.attn.wq_b.{p}"][1] for p in ("weight", "scale"))
    w = decoded(stored()).blocks[0].attention.wq_b.values
    row, column = 300, 77
    byte, exponent = int(codes[row, column]), int(scales[row // 128, column // 128]) - 127
    e, m = byte >> 3 & 15, byte & 7
    magnitude = m / 8 * 2**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    assert w[row, column] == (-1 if byte >> 7 else 1) * magnitude * 2.0**exponent


def test_precision_changes_every_float_and_nothing_else():
    w = in_precision(decoded(stored()), np.float32)
    assert w.embed.dtype == w.blocks[1].moe.experts[0].w1.values.dtype == np.float32
    assert w.blocks[1].attention.compressor.ape.dtype == np.float32
    assert w.blocks[0].moe.table.dtype == np.int64


def test_a_lineage_is_read_from_stored_names():
    names = stored()
    assert lineage(names) == "dspark"
    assert lineage({"mtp.0.e_proj.weight": 0}) == "nextn" and lineage({}) == "none"
    with pytest.raises(TensorError, match="one kind of tail"):
        lineage({"mtp.0.e_proj.weight": 0, "mtp.0.main_proj.weight": 0})
    assert set(census(golden("tiny-s").config, names)) == set(names)


FP8, SCALE = "layers__0__attn__wq_a__weight", "layers__0__attn__wq_a__scale"
EXPERT = "layers__0__ffn__experts__1__w2__"


def patched(name, change):
    """One stored tensor with its bits changed in place of a copy."""
    dtype, bits = stored()[name.replace("__", ".")]
    bits = bits.copy()
    change(bits)
    return {name: (dtype, bits)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({FP8: None}, "missing"),
        ({"layers__9__ffn_norm__weight": ("BF16", np.zeros(128, np.uint16))}, "not part"),
        ({FP8: ("BF16", np.zeros((128, 128), np.uint16))}, "F8_E4M3"),
        ({FP8: ("F8_E4M3", np.zeros((128, 64), np.uint8))}, r"\[128, 64\]"),
        ({SCALE: ("F8_E8M0", np.zeros((2, 1), np.uint8))}, r"\[1, 1\]"),
        ({"mtp__1__norm__weight": None}, "missing"),
        (patched(SCALE, lambda b: b.fill(0xFF)), "0xFF"),
        (patched(f"{EXPERT}scale", lambda b: b.__setitem__((3, 1), 0xFF)), "0xFF"),
        (patched(FP8, lambda b: b.__setitem__((0, 0), 0x7F)), "NaN"),
        (patched(FP8, lambda b: b.__setitem__((5, 9), 0xFF)), "NaN"),
        (patched("norm__weight", lambda b: b.__setitem__(3, 0x7FC0)), "NaN"),
        (patched("layers__0__ffn__gate__tid2eid", lambda b: b.__setitem__((0, 0), 4)), "0..3"),
        (patched("layers__0__ffn__gate__tid2eid", lambda b: b.__setitem__((0, 0), -1)), "0..3"),
        (patched("layers__0__ffn__gate__tid2eid", lambda b: b[9].fill(2)), "twice"),
    ],
)
def test_a_damaged_tensor_is_refused_by_name(changes, said):
    with pytest.raises(TensorError, match=said) as refusal:
        decoded(stored(**changes))
    assert next(iter(changes)).replace("__", ".").rpartition(".")[0] in str(refusal.value)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("weight_scale_2", np.array(0.0, np.float32)),
        ("weight_scale_2", np.array(-1.0, np.float32)),
        ("weight_scale_2", np.array(np.inf, np.float32)),
        ("weight_scale_2", np.array(np.nan, np.float32)),
    ],
)
def test_a_second_scale_must_be_finite_and_positive(part, value):
    tensors = as_nvfp4(stored())
    tensors[f"layers.1.ffn.experts.0.w1.{part}"] = ("F32", value)
    with pytest.raises(TensorError, match="finite and positive"):
        decoded(tensors)


@pytest.mark.parametrize("code", [0x7F, 0xFF, 0x88])
def test_an_nvfp4_scale_is_no_nan_and_not_negative(code):
    tensors = as_nvfp4(stored())
    name = "layers.1.ffn.experts.0.w1.weight_scale"
    bits = tensors[name][1].copy()
    bits[2, 2] = code
    tensors[name] = ("F8_E4M3", bits)
    with pytest.raises(TensorError, match="negative"):
        decoded(tensors)


def test_a_configuration_of_another_tail_is_refused():
    config = dataclasses.replace(golden("tiny-s").config, dspark_block_size=0)
    with pytest.raises(TensorError, match="dspark_block_size"):
        decode_weights(config, stored())
    config = dataclasses.replace(golden("tiny-s").config, compress_ratios=(0, 4, 8, 4, 0))
    with pytest.raises(TensorError, match="2 stages"):
        decode_weights(config, stored())


def test_copies_of_the_embedding_in_the_tail_are_ignored():
    extra = {"mtp__0__embed__weight": ("BF16", np.zeros((256, 128), np.uint16))}
    decoded(stored(**extra))

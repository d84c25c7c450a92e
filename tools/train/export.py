"""Writes trained weights as a release: FP8 + MXFP4 in layout 0731, or trunk experts in NVFP4.

Codes are made by the oracle's encoders and read back through the project's own reader; what comes
out must be, bit for bit, what training computed with, or nothing is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsv4.checkpoint.config import ModelConfig, read_config
from dsv4.checkpoint.expected import expected_tensors
from dsv4.checkpoint.formats import STORAGE
from dsv4.checkpoint.published import layout_of_name, nvfp4_manifest
from dsv4.checkpoint.reader import SINGLE_FILE
from dsv4.errors import Refusal
from oracle.blocks import encode_fp8_block, encode_mxfp4
from oracle.formats import encode
from tools.train.laws import engine
from tools.train.parameters import parameters, prepared
from tools.train.stored import read_weights

LAYOUTS = ("0731", "0731-nvfp4")
_LARGEST_SCALE = 8  # 2^8 is the largest power of two in E4M3
_INPUT_SCALE = 8.0 / (6.0 * 448.0)  # unused by kernels that keep activations in FP8
_SIDES = (("w1", "w3"), ("w2",))  # matrices that share a second scale in NVFP4


def export(
    content: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    out: Path,
    *,
    layout: str = "0731",
    remarks: Mapping[str, str] | None = None,
) -> int:
    """Write a checkpoint folder and give the bytes of its tensors.

    Errors: Refusal when something is there already, when a weight is not finite, when NVFP4 scales
    do not reach, or when what is read back differs from what was trained.
    """
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise Refusal(f"an export was asked for; something is there\n  {out}\n  give a new folder")
    config = read_config(content, "the configuration of the run")
    stored = dict(_stored(config, weights, nvfp4=layout == "0731-nvfp4"))
    expected = expected_tensors(config, layout_of_name(layout, config))
    if set(stored) != set(expected):
        raise Refusal(f"an export of {len(expected)} tensors was asked for; {len(stored)} are made")
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        text = json.dumps(content, indent=1)
        (partial / "config.json").write_text(text + "\n", encoding="utf-8")
        words: dict[str, Any] = {"tokenizer_class": "bytes"}
        words |= {k: content[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
        text = json.dumps(words, indent=1)
        (partial / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        if layout == "0731-nvfp4":
            manifest = {"quantization": nvfp4_manifest(config.n_layers)}
            text = json.dumps(manifest, indent=1)
            (partial / "hf_quant_config.json").write_text(text + "\n", encoding="utf-8")
        with (partial / SINGLE_FILE).open("wb") as file:
            kinds = {name: entry.dtype for name, entry in expected.items()}
            for chunk in _file(stored, kinds, remarks or {}):
                file.write(chunk)
        check_round_trip(partial, config, weights)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sum(bits.nbytes for bits in stored.values())


def check_round_trip(
    folder: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor]
) -> None:
    """Nothing, if a checkpoint decodes to what training computed with.

    Errors: Refusal naming the first weight that differs.
    """
    with torch.no_grad():
        law = engine(torch.float32)
        own = {n: w.detach().cpu() for n, w in weights.items()}
        trained = prepared(own, config, law)
    _, read = read_weights(folder)
    for name, want in trained.items():
        got = read[name]
        if not torch.equal(got.to(torch.float64), want.to(torch.float64)):
            off = int((got.to(torch.float64) != want.to(torch.float64)).sum())
            raise Refusal(
                f"{name} reads back with {off} of {want.numel()} numbers that were not trained\n"
                f"  in {folder}\n  nothing was exported; the two quantisers disagree"
            )


def _stored(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], *, nvfp4: bool
) -> Iterator[tuple[str, np.ndarray]]:
    for name, parameter in parameters(config).items():
        w = weights[name].detach().cpu().numpy()
        if not np.isfinite(w).all():
            raise Refusal(f"{name} holds NaN or infinity\n  the run diverged; lower its rate")
        if parameter.kind == "fp8":
            codes, scales = encode_fp8_block(w)
            yield f"{name}.weight", codes
            yield f"{name}.scale", scales
        elif parameter.kind == "fp4":
            if not nvfp4 or not name.startswith("layers."):
                yield from _mxfp4(name, w)
        elif parameter.kind == "bf16":
            yield f"{name}.weight", encode(w, "bf16").astype(np.uint16)
        else:
            yield name, w
    if nvfp4:
        for number in range(config.n_layers):
            yield from _nvfp4(f"layers.{number}.ffn.experts", weights)


def _mxfp4(name: str, w: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    bank, _, matrix = name.rpartition(".")
    for number, expert in enumerate(w):
        packed, scales = encode_mxfp4(expert)
        yield f"{bank}.{number}.{matrix}.weight", packed
        yield f"{bank}.{number}.{matrix}.scale", scales


def _nvfp4(bank: str, weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """The same numbers with a scale for each 16 columns and a second one for each matrix.

    Errors: Refusal when the scales of one matrix lie further apart than E4M3 reaches.
    """
    first = weights[f"{bank}.w1"]
    for number in range(len(first)):
        for side in _SIDES:
            made = {m: encode_mxfp4(weights[f"{bank}.{m}"][number].detach().cpu().numpy())
                    for m in side}  # fmt: skip
            exponents = {m: scales.astype(np.int64) - 127 for m, (_, scales) in made.items()}
            base = max(int(k.max()) for k in exponents.values()) - _LARGEST_SCALE
            for m, (packed, _) in made.items():
                name = f"{bank}.{number}.{m}"
                near = exponents[m] - base
                if near.min() < -9:
                    raise Refusal(
                        f"{name} has scales 2^{int(near.min()) - 8} apart; NVFP4 reaches 2^-17\n"
                        "  export it in layout 0731"
                    )
                scale = encode(np.ldexp(1.0, near.repeat(2, -1)), "e4m3").astype(np.uint8)
                yield f"{name}.weight", packed
                yield f"{name}.weight_scale", scale
                yield f"{name}.weight_scale_2", np.array(2.0**base, np.float32)
                yield f"{name}.input_scale", np.array(_INPUT_SCALE, np.float32)


def _file(
    stored: Mapping[str, np.ndarray], kinds: Mapping[str, str], remarks: Mapping[str, str]
) -> Iterator[bytes]:
    """A safetensors file; wide elements first, so that every tensor is aligned."""
    names = sorted(stored, key=lambda n: -STORAGE[kinds[n]].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **remarks}}
    offset = 0
    for name in names:
        end = offset + stored[name].nbytes
        header[name] = {
            "dtype": kinds[name],
            "shape": list(stored[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    yield len(raw).to_bytes(8, "little") + raw
    for name in names:
        yield np.ascontiguousarray(stored[name]).tobytes()

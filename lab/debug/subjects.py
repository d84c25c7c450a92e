"""Subjects of `bisect forward` that are here already: the float64 model, and it with our kernels.

The model's operators all go through its `Conditions`; a stand-in for them shows each operator's
result as a tap named after its weight, and can compute it with the kernel instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsv4 import registry
from dsv4.errors import Refusal
from dsv4.runtime.device import Device
from dsv4.runtime.launch import prepare
from lab.debug.forward import Listener
from lab.recorded import refusing
from lab.stored import Checkpoint
from oracle.config import read_config
from oracle.formats import decode, encode
from oracle.laws import LAWS
from oracle.trunk import Model, build_model, forward

_PRODUCTS = {"fp8": "linear_fp8", "bf16": "linear_bf16", "fp4": "linear_fp4",
             "island": "island_dots_f32"}  # fmt: skip
_LAYER_END = "hyper"
TINY = Path(__file__).resolve().parents[2] / "tests" / "data" / "tiny-s"
"""The tiny checkpoint of the tests, where there is a checkout."""


@dataclass(frozen=True)
class OracleSubject:
    """The float64 model under a law; with a device, operators that have a kernel run on it."""

    name: str
    model: Model
    device: Device | None = None

    def run(self, tokens: np.ndarray, listen: Listener) -> None:
        """Run the trunk over a sequence and show every operator's result."""
        names = weight_names(self.model)
        watched = Watched(self.model.conditions, names, listen, self.device)
        model = replace(self.model, conditions=watched)  # type: ignore[arg-type]

        def probe(name: str, value: np.ndarray) -> None:
            # Norms are taps of their own; a layer's end is the hyper-connection's.
            if name.startswith("layer"):
                value[...] = listen(f"layer.{name.removeprefix('layer')}.end", _LAYER_END, value)

        forward(model, tokens, probe)


class Watched:
    """The operators of `oracle.conditions.Conditions`, each shown to a listener."""

    def __init__(
        self, inner: Any, names: Mapping[int, str], listen: Listener, device: Device | None
    ) -> None:
        """Wrap the conditions of one pass."""
        self.inner = inner
        self.config = inner.config
        self.law = WatchedLaw(inner.law, self)
        self.device = device
        self._names = names
        self._listen = listen
        self._last = ""
        self._counts: dict[str, int] = {}

    def tap(self, name: str, kernel: str, value: np.ndarray) -> np.ndarray:
        """Show a value under a name; one that comes again in a pass gets a number."""
        self._last = name.rpartition(".")[0]
        count = self._counts[name] = self._counts.get(name, 0) + 1
        shown = name if count == 1 else f"{name}#{count}"
        return self._listen(shown, kernel, value)

    def near(self, part: str) -> str:
        """A name beside the operator that was seen last."""
        return f"{self._last}.{part}"

    def of_attention(self, part: str) -> str:
        """A name in the attention of the layer that was seen last."""
        layer, _, _ = self._last.partition(".attention")
        return f"{layer}.attention.{part}"

    def linear(self, x: np.ndarray, w: Any) -> np.ndarray:
        """x times a matrix."""
        name, kernel = self._names.get(id(w), "product"), _PRODUCTS[w.kind]
        if self.device is not None and w.values.ndim == 2 and x.ndim == 2:
            if w.kind == "island":
                y = launch(self.device, kernel, "y", x=_f32(x), w=_f32(w.values))
                return self.tap(name, kernel, y.astype(x.dtype))
            if w.kind == "bf16" and w.values.shape[1] % 16 == 0:
                return self.tap(name, kernel, self._product(x, w).astype(x.dtype))
        return self.tap(name, kernel, self.inner.linear(x, w))

    def norm(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """x over the root of its mean square, times the gain."""
        name, kernel = self._names.get(id(gain), "norm"), "rms_norm"
        if self.device is None:
            return self.tap(name, kernel, self.inner.norm(x, gain))
        y = launch(self.device, kernel, "y", x=_f32(x), w=_f32(gain), eps=self.config.norm_eps)
        return self.tap(name, kernel, y.astype(x.dtype))

    def head_norm(self, q: np.ndarray) -> np.ndarray:
        """Every head over the root of its mean square."""
        name, kernel = self.near("q_head_norm"), "rms_norm_head"
        if self.device is None:
            return self.tap(name, kernel, self.inner.head_norm(q))
        y = launch(self.device, kernel, "x", x=_f32(q), eps=self.config.norm_eps)
        return self.tap(name, kernel, y.astype(q.dtype))

    def rotate(
        self, x: np.ndarray, positions: np.ndarray, ratio: int, *, inverse: bool = False
    ) -> np.ndarray:
        """x with its last lanes rotated; turning back follows the attention, which is a tap too."""
        if inverse:
            x = self.tap(self.of_attention("o"), "attention_sink", x)
        part = "o_rope" if inverse else "q_rope" if x.ndim == 3 else "kv_rope"
        if self.device is None:
            turned = self.inner.rotate(x, positions, ratio, inverse=inverse)
            return self.tap(self.near(part), "rope", turned)
        table = self.inner.compressed_table if ratio else self.inner.window_table
        heads = x if x.ndim == 3 else x[:, None, :]
        y = launch(
            self.device, "rope", "x", x=_f32(heads), table=_f32(table),
            positions=positions.astype(np.int32), inverse=int(inverse),
        )  # fmt: skip
        return self.tap(self.near(part), "rope", y.reshape(x.shape).astype(x.dtype))

    def _product(self, x: np.ndarray, w: Any) -> np.ndarray:
        """linear_bf16 on up to eight rows at a time."""
        assert self.device is not None
        weights = encode(w.values, "bf16")
        parts = [
            launch(self.device, "linear_bf16", "y", w=weights, x=encode(x[i : i + 8], "bf16"))
            for i in range(0, len(x), 8)
        ]
        return np.concatenate(parts)


class WatchedLaw:
    """A law whose quantisers are taps."""

    def __init__(self, inner: Any, watched: Watched) -> None:
        """Wrap a law."""
        self._inner = inner
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        """Everything that is no quantiser, as the law has it."""
        return getattr(self._inner, name)

    def kv_lanes(self, x: np.ndarray, rotated: int) -> np.ndarray:
        """KV rows through FP8."""
        w, kernel = self._watched, "act_quant_fp8_inplace"
        prefix = x.shape[-1] - rotated
        if w.device is None or not self._inner.kv_codes or prefix % 64:
            return w.tap(w.near("kv_quant"), kernel, self._inner.kv_lanes(x, rotated))
        y = launch(w.device, kernel, "x", x=_f32(x), prefix=prefix, group=64)
        return w.tap(w.near("kv_quant"), kernel, y.astype(x.dtype))

    def index_lanes(self, x: np.ndarray) -> np.ndarray:
        """Indexer queries or keys through FP4."""
        w, kernel = self._watched, "act_quant_fp4_inplace"
        if w.device is None or not self._inner.index_codes or x.shape[-1] % 32:
            return w.tap(w.near("index_quant"), kernel, self._inner.index_lanes(x))
        y = launch(w.device, kernel, "x", x=_f32(x.reshape(-1, x.shape[-1])))
        return w.tap(w.near("index_quant"), kernel, y.reshape(x.shape).astype(x.dtype))


def open_model(folder: Path, law: str) -> Model:
    """The float64 model of a checkpoint folder. Errors: Refusal."""
    import json

    config_file = folder / "config.json"
    if not config_file.is_file():
        raise Refusal(f"{folder} holds no checkpoint: config.json is not there")
    with refusing(folder):
        config = read_config(json.loads(config_file.read_text(encoding="utf-8")))
        stored = Checkpoint(folder)
        tensors = {n: (stored.dtype(n), stored.tensor(n).bits) for n in stored}
        return build_model(config, tensors, LAWS[law])


def weight_names(model: Model) -> dict[int, str]:
    """What each weight object of the trunk is called: `layer.2.attention.wq_b`."""
    found: dict[int, str] = {id(model.weights.head): "head", id(model.weights.exit.norm): "norm"}
    for number, block in enumerate(model.weights.blocks):
        _collect(block, f"layer.{number}", found)
    return found


def _collect(part: Any, name: str, found: dict[int, str]) -> None:
    found[id(part)] = name
    if isinstance(part, tuple):
        for number, item in enumerate(part):
            _collect(item, f"{name}.{number}", found)
    elif is_dataclass(part):
        for item in fields(part):
            _collect(getattr(part, item.name), f"{name}.{item.name}", found)


def launch(device: Device, kernel: str, output: str, **named: Any) -> np.ndarray:
    """One output of one launch on host arrays: floats decoded.

    Arrays are given as stored bits, in and inout by name; scalars and options by name.
    """
    spec = registry.spec(kernel)
    arrays = {a.name: device.to_device(np.ascontiguousarray(named.pop(a.name)))
              for a in spec.inputs}  # fmt: skip
    for arg in spec.outputs:
        if arg.name not in arrays:
            bound = {a: s for i in spec.inputs
                     for a, s in zip(i.axes, arrays[i.name].shape, strict=True)}  # fmt: skip
            arrays[arg.name] = device.empty([bound[a] for a in arg.axes], arg.fmt)
    prepare(spec, device=device, **arrays, **named).run()
    device.synchronize()
    bits, fmt = device.to_numpy(arrays[output]), spec.arg(output).fmt
    return decode(bits, fmt.name) if fmt.is_float else bits


def _f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)

"""The float64 model as a subject of `bisect forward`: a law or a checkpoint beside another.

The model's operators all go through its `Conditions`; a stand-in for them shows each operator's
result as a tap named after its weight, with the kernel that computes it in the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.errors import Refusal
from lab.debug.forward import Listener
from lab.recorded import refusing
from lab.stored import Checkpoint
from oracle.config import read_config
from oracle.laws import LAWS
from oracle.trunk import Model, build_model, forward

_PRODUCTS = {"fp8": "linear_fp8", "bf16": "linear_bf16", "fp4": "linear_fp4",
             "island": "island_dots_f32"}  # fmt: skip
_LAYER_END = "hyper"
TINY = Path(__file__).resolve().parents[2] / "tests" / "data" / "tiny-s"
"""The tiny checkpoint of the tests, where there is a checkout."""


@dataclass(frozen=True)
class OracleSubject:
    """The float64 model under a law."""

    name: str
    model: Model

    def run(self, tokens: np.ndarray, listen: Listener) -> None:
        """Run the trunk over a sequence and show every operator's result."""
        names = weight_names(self.model)
        watched = Watched(self.model.conditions, names, listen)
        model = replace(self.model, conditions=watched)  # type: ignore[arg-type]

        def probe(name: str, value: np.ndarray) -> None:
            # Norms are taps of their own; a layer's end is the hyper-connection's.
            if name.startswith("layer"):
                value[...] = listen(f"layer.{name.removeprefix('layer')}.end", _LAYER_END, value)

        forward(model, tokens, probe)


class Watched:
    """The operators of `oracle.conditions.Conditions`, each shown to a listener."""

    def __init__(self, inner: Any, names: Mapping[int, str], listen: Listener) -> None:
        """Wrap the conditions of one pass."""
        self.inner = inner
        self.config = inner.config
        self.law = WatchedLaw(inner.law, self)
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
        name = self._names.get(id(w), "product")
        return self.tap(name, _PRODUCTS[w.kind], self.inner.linear(x, w))

    def norm(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """x over the root of its mean square, times the gain."""
        name = self._names.get(id(gain), "norm")
        return self.tap(name, "rms_norm", self.inner.norm(x, gain))

    def head_norm(self, q: np.ndarray) -> np.ndarray:
        """Every head over the root of its mean square."""
        return self.tap(self.near("q_head_norm"), "rms_norm_head", self.inner.head_norm(q))

    def rotate(
        self, x: np.ndarray, positions: np.ndarray, ratio: int, *, inverse: bool = False
    ) -> np.ndarray:
        """x with its last lanes rotated; turning back follows the attention, which is a tap too."""
        if inverse:
            x = self.tap(self.of_attention("o"), "attention_sink", x)
        part = "o_rope" if inverse else "q_rope" if x.ndim == 3 else "kv_rope"
        turned = self.inner.rotate(x, positions, ratio, inverse=inverse)
        return self.tap(self.near(part), "rope", turned)


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
        w = self._watched
        lanes = self._inner.kv_lanes(x, rotated)
        return w.tap(w.near("kv_quant"), "act_quant_fp8_inplace", lanes)

    def index_lanes(self, x: np.ndarray) -> np.ndarray:
        """Indexer queries or keys through FP4."""
        w = self._watched
        return w.tap(w.near("index_quant"), "act_quant_fp4_inplace", self._inner.index_lanes(x))


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

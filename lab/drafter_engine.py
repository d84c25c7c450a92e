"""What the engine's targets and drafters give for a recorded folder, under the recorded names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dsv4.runtime.device import Device
from dsv4.targets.load import load_target
from dsv4.targets.qwen3 import QwenTarget, TargetCache
from lab.drafter_outputs import STATES_AFTER, Outputs
from lab.drafter_recorded import DrafterRecord


def engine_target_outputs(record: DrafterRecord, device: Device) -> Outputs:
    """Prefill, greedy decode, and the states of linear layers."""
    target = load_target(Path(record.folder), device)
    prompt = record.arrays["input.prompt_ids"].tolist()
    steps = len(record.arrays["greedy.ids"])
    cache = target.new_cache(len(prompt) + steps)
    out: Outputs = {}

    def keep(name: str, value: Any) -> None:
        out[f"prefill.{name}"] = _host(device, value)

    final, _ = target.forward(prompt, cache, keep)
    out["prefill.logits"] = _host(device, target.head(final))
    out |= _states(target, cache, "prefill")
    return out | _greedy(target, cache, out["prefill.logits"][-1], steps)


def _greedy(target: QwenTarget, cache: TargetCache, row: np.ndarray, steps: int) -> Outputs:
    device, rows, ids = target.ops.device, [row], [int(np.argmax(row))]
    hidden: dict[str, list[np.ndarray]] = {}
    out: Outputs = {}

    def keep(name: str, value: Any) -> None:
        if name.startswith("hidden."):
            hidden.setdefault(f"decode.{name}", []).append(_host(device, value)[0])

    for step in range(1, steps):
        final, _ = target.forward([ids[-1]], cache, keep)
        rows.append(_host(device, target.head(final))[0])
        ids.append(int(np.argmax(rows[-1])))
        if step in STATES_AFTER:
            out |= _states(target, cache, f"decode{step}")
    out |= {name: np.array(value) for name, value in hidden.items()}
    return out | {"greedy.logits": np.array(rows), "greedy.ids": np.array(ids)}


def _states(target: QwenTarget, cache: TargetCache, when: str) -> Outputs:
    if cache.conv is None or cache.recurrent is None:
        return {}
    device, out = target.ops.device, Outputs()
    conv = _host(device, cache.conv[cache.side])
    recurrent = _host(device, cache.recurrent[cache.side])
    for layer, at in target.linear_index.items():
        out[f"state.{when}.layer{layer}.conv"] = conv[at]
        out[f"state.{when}.layer{layer}.recurrent"] = recurrent[at].transpose(0, 2, 1)
    return out


def _host(device: Device, value: Any) -> np.ndarray:
    """A copy as float64, or the integers as they are."""
    array = value if isinstance(value, np.ndarray) else device.to_numpy(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array.copy()

"""What a caller may ask of the engine, looked at before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dsv4.checkpoint.config import ModelConfig
from dsv4.engine.opening import DEFAULT_POSITIONS
from dsv4.errors import Refusal, StateError
from dsv4.runtime.device import Device, open_device


def checked_ids(
    ids: Sequence[int] | np.ndarray,
    start: int,
    asked: str,
    vocabulary: int,
    positions: int,
    where: str,
) -> npt.NDArray[np.int32]:
    """The ids as int32: some, of the vocabulary, with room for them. Errors: StateError."""
    found = np.asarray(ids)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise StateError(
            f"{asked} was asked for on ids of shape {list(found.shape)}, {found.dtype}\n"
            "  it takes a list of at least one token id\n  in dsv4.engine\n"
            "  give whole numbers"
        )
    if (bad := (found < 0) | (found >= vocabulary)).any():
        place = int(np.argmax(bad))
        raise StateError(
            f"{asked} was asked for on token {int(found[place])}, at place {place}\n"
            f"  the vocabulary is 0..{vocabulary - 1}\n  in {where}\n"
            "  give ids of this model's tokenizer"
        )
    if start + found.size > positions:
        raise StateError(
            f"{asked} was asked for on {found.size} tokens from position {start}\n"
            f"  the engine was loaded for {positions} positions\n  in dsv4.engine\n"
            "  load it with a larger max_seq, or give fewer tokens"
        )
    return found.astype(np.int32)


def longest_sequence(config: ModelConfig, asked: int | None, where: str) -> int:
    """How many positions an engine is loaded for. Errors: Refusal beyond the model's own."""
    if asked is None:
        return min(config.usable_positions, DEFAULT_POSITIONS)
    if not 1 <= asked <= config.usable_positions:
        raise Refusal(
            f"sequences of {asked} positions were asked for\n"
            f"  the model has {config.usable_positions}\n  in {where}\n  give a smaller max_seq"
        )
    return asked


def open_devices(devices: Sequence[int | Device], backend: str) -> list[Device]:
    """A device for each stage; the same index is the same device. Errors: DeviceError, Refusal."""
    if not devices:
        raise Refusal(
            "a model was to be loaded on no devices\n  it has at least one stage\n"
            "  in Engine.load\n  give devices=(0,)"
        )
    opened: dict[int, Device] = {}
    found: list[Device] = []
    for device in devices:
        if isinstance(device, int):
            if device not in opened:
                opened[device] = open_device(backend, index=device)
            found.append(opened[device])
        else:
            found.append(device)
    return found

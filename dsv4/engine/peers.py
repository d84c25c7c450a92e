"""Whether bytes cross between the devices of neighbouring stages as they should."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from dsv4.errors import Refusal
from dsv4.runtime.device import Device
from dsv4.spec import U8

# One row of streams, a few, a prompt's, and sizes at which copy engines change their ways.
SIZES: Final = (16 << 10, 64 << 10, 512 << 10, 1 << 20, 64 << 20)
_POISON: Final = "DSV4_PEER_PROBE_POISON"


def probe_peers(devices: Sequence[Device], *, sizes: Sequence[int] = SIZES) -> None:
    """Nothing, if copies between all devices that hand on to each other arrive byte for byte.

    Both directions, every size, onto a destination that holds the complement. Devices that are the
    same one are left out. DSV4_PEER_PROBE_POISON=1 flips a byte, to show that the probe has teeth.
    Errors: Refusal naming the devices, the size and the first byte that is wrong.
    """
    pairs = {(id(a), id(b)): (a, b) for a, b in zip(devices, devices[1:], strict=False)}
    for one, other in pairs.values():
        if one is not other:
            for sender, receiver in ((one, other), (other, one)):
                for size in sizes:
                    _probe(sender, receiver, size)


def _probe(sender: Device, receiver: Device, size: int) -> None:
    pattern = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    source = sender.to_device(pattern)
    arrived = receiver.empty((size,), U8)
    receiver.write(arrived, ~pattern)
    receiver.receive(arrived, source, sender)
    receiver.synchronize()
    got = receiver.to_numpy(arrived)
    if os.environ.get(_POISON) == "1":
        got[size // 2] ^= 1
    wrong = np.flatnonzero(got != pattern)
    if len(wrong):
        place = int(wrong[0])
        raise Refusal(
            f"{size} bytes were copied from {sender.name} to {receiver.name}\n"
            f"  {len(wrong)} of them arrived wrong, first byte {place}:"
            f" {got[place]:#04x} for {pattern[place]:#04x}\n  in the probe before a load\n"
            "  put all stages on one device, or check the link with: dsv4-lab doctor"
        )

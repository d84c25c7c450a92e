"""What all processes of a run must agree on, short enough to be compared before anything loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from dsv4 import __version__
from dsv4.engine.arms import Arms
from dsv4.engine.source import FileSource, MintSource, WeightSource
from dsv4.runtime.sources import cuda_root, digest

PROTOCOL: Final = 1
"""Changes when the messages between processes do."""
_SAMPLED_BYTES: Final = 64 << 10
_DIGITS: Final = 16


def run_facts(
    source: WeightSource, arms: Arms, *, max_seq: int, backend: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    """The facts of a run by name. request: what is to be made, which all ranks are told alike."""
    root = cuda_root()
    kernels = sorted([*root.glob("*.cu"), *(root / "common").glob("*.cuh")])
    return {
        "protocol": PROTOCOL,
        "version": __version__,
        "kernels": digest(kernels, "")[:_DIGITS],
        "checkpoint": checkpoint_digest(source),
        "config": _digest_of(repr(source.census.config)),
        "arms": arms.to_json(),
        "max_seq": max_seq,
        "backend": backend,
        "request": dict(request),
    }


def checkpoint_digest(source: WeightSource) -> str:
    """A digest of names, types, shapes and all small tensors of a checkpoint, or of its plan.

    Large tensors are not read: two releases that differ in nothing else pass for the same.
    """
    total = hashlib.sha256()
    for name, entry in sorted(source.census.entries.items()):
        total.update(f"{name} {entry.dtype} {entry.shape}\0".encode())
    if isinstance(source, MintSource):
        plan = source.plan
        total.update(f"{plan.size} {plan.layout_name} {plan.seed} {plan.agreeing}".encode())
    if isinstance(source, FileSource):
        for name, entry in sorted(source.census.entries.items()):
            if entry.size_bytes <= _SAMPLED_BYTES and ".experts." not in name:
                total.update(source.artifact.tensors.tensor(name).tobytes())
                source.artifact.tensors.release(name)
    return total.hexdigest()[:_DIGITS]


def _digest_of(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:_DIGITS]

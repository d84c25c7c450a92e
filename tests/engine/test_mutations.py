"""Planted faults: where they are planted, in both forms of a step, and where none can matter."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from dsv4 import registry
from dsv4.engine import decode
from dsv4.engine.source import config_of, open_source
from lab import mutations
from lab.minted import model_of
from lab.mutations import MUTATIONS, cannot_matter, meant, mutated
from lab.spec_gates import same_tokens
from tests.engine.engines import same_bytes, tiny_engine, tokens
from tests.goldens import golden_folder

# A prompt that wraps the window of 8 and ends more blocks of 4 than an indexer of tiny-s chooses.
PROMPT, ROWS, ROUNDS = 15, 4, 2
ONLY_SINGLE = {"inverse rotation missing"}
# Two rows are written to one place, and no order says which of them stays.
RACING = {"stale pending row"}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_names_kernels_that_exist_and_arguments_that_they_have(name: str) -> None:
    planted, kernels = MUTATIONS[name], registry.kernels()
    for patterns, _ in planted:
        for pattern in patterns:
            assert any(meant((pattern,), kernel) for kernel in kernels), pattern
    for kernel, declared in kernels.items():
        change = next((c for patterns, c in planted if meant(patterns, kernel)), None)
        has = {a.name for a in (*declared.spec.args, *declared.spec.options)}
        assert change is None or set(change.names) <= has, kernel


@functools.lru_cache(maxsize=1)
def clean() -> list[np.ndarray]:
    """What `stepped` gives without a fault, in both forms."""
    return stepped("on", None)


def stepped(fused: str, fault: str | None) -> list[np.ndarray]:
    """(logits and caches after some rounds with a fault, behind a prompt that has none)."""
    made, ids = tiny_engine(fused=fused), tokens(PROMPT + ROUNDS * ROWS).astype(np.int32)
    state = made.alloc_decode_state(rows=ROWS)
    made.prefill_with_cache(ids[:PROMPT], state)
    found = []
    with nullcontext() if fault is None else mutated(fault):
        for _ in range(ROUNDS):
            given = ids[state.pos : state.pos + ROWS]
            found.append(decode.step_logits(made, state, given).copy())
            state.pos += ROWS
    return found + [np.asarray(array).copy() for _, array in made.cache_classes(state)]


def all_same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Whether all bytes agree."""
    return all(same_bytes(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("name", sorted(set(MUTATIONS) - ONLY_SINGLE))
def test_a_fault_does_to_fused_steps_what_it_does_to_single_launches(name: str) -> None:
    fused, single = stepped("on", name), stepped("off", name)
    assert not all_same(clean(), fused) and not all_same(clean(), single)
    assert name in RACING or all_same(fused, single)


def test_a_fault_that_no_fused_launch_can_have_is_in_single_ones() -> None:
    for name in ONLY_SINGLE:
        assert not all_same(clean(), stepped("off", name))


def test_what_cannot_matter_is_decided_by_sizes() -> None:
    tiny = config_of(open_source(model_of(golden_folder("tiny-s"))))
    assert all(cannot_matter(name, tiny, 33) == "" for name in (*MUTATIONS, "early ring write"))
    unsigned = "unsigned index weights"
    assert cannot_matter(unsigned, tiny, 15) == "15 tokens end 3 blocks, and an indexer chooses 3"
    assert cannot_matter(unsigned, tiny, 16) == ""
    assert "window of 8" in cannot_matter("early ring write", tiny, 8)
    assert cannot_matter("early ring write", tiny, 9) == ""
    for name in ("missing ape", "ape added twice", "block seen late"):
        assert cannot_matter(name, tiny, 3) == "3 tokens end no block of 4"
        assert cannot_matter(name, tiny, 4) == ""
    plain = replace(tiny, compress_ratios=(0,) * len(tiny.compress_ratios))
    assert cannot_matter("stale pending row", plain, 33) == "no layer compresses"
    assert cannot_matter("one ulp in the gains", plain, 1) == ""


def test_a_stream_hides_a_fault_only_where_steps_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ids = tiny_engine(fused="on"), tokens(16)
    said = same_tokens(engine, ids[:12], ids[12:], "one ulp in the gains")
    assert said == "plain steps with it say the same 3 tokens, by other logits"
    assert same_tokens(engine, ids[:12], ids[12:], "no sink") == ""
    nowhere = (("no_such_kernel",), MUTATIONS["no sink"][0][1])
    monkeypatch.setattr(mutations, "MUTATIONS", {"no sink": (nowhere,)})
    assert same_tokens(engine, ids[:12], ids[12:], "no sink") == ""

"""Long greedy streams of every target and family: equality is structural, so it never ends."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.drafters.making import made_drafter
from dsv4.drafters.sampler import DeviceSampler
from dsv4.drafters.weights import load_draft
from dsv4.speculation.loops import generate, plain
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.targets.dsv4 import V4Target
from tests.drafters.pairs import FAMILIES, TARGETS, Knowing, load_pair
from tests.engine.speculation import speaking_engine

PROMPTS = ([3, 14, 15, 92, 65], [7], list(range(40, 61)))


def knowing(target: Any, drafter: Any, prompt: list[int], count: int) -> tuple[Knowing, list[int]]:
    """A drafter that knows two thirds of what comes, and what comes."""
    stream = plain(target, prompt, count + 16)
    wrong = np.random.default_rng(5).random(211) < 1 / 3
    return Knowing(drafter, stream, wrong, len(prompt), target.vocab), stream[:count]


@pytest.mark.parametrize("kind", TARGETS)
def test_streams_of_every_length_are_the_targets_own(kind: str, tmp_path: Path) -> None:
    target, drafter = load_pair(tmp_path, kind, "dspark")
    known, stream = knowing(target, drafter, PROMPTS[0], 64)
    for count in (17, 64):
        found = generate(target, known, PROMPTS[0], count)  # type: ignore[arg-type]
        assert list(found.tokens) == stream[:count]


@pytest.mark.stress
@pytest.mark.parametrize("family", ["dspark", "dflash2"])
def test_cold_draws_of_three_seeds_are_the_greedy_stream(family: str, tmp_path: Path) -> None:
    target, drafter = load_pair(tmp_path, "dense", family)
    known, stream = knowing(target, drafter, PROMPTS[0], 64)
    sampler = DeviceSampler(target.ops)
    for seed in (42, 7, 1234):
        cold = SpecSampling(1e-6, seed=seed)
        found = generate(target, known, PROMPTS[0], 64, sampling=cold, sampler=sampler)  # type: ignore[arg-type]
        assert list(found.tokens) == stream
    still = SpecSampling(0.0, seed=42)
    found = generate(target, known, PROMPTS[0], 64, sampling=still, sampler=sampler)  # type: ignore[arg-type]
    assert list(found.tokens) == stream and found.sctr == 0


@pytest.mark.stress
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [*TARGETS, "moe"])
def test_three_prompts_and_256_tokens_are_the_targets_own(
    kind: str, family: str, tmp_path: Path
) -> None:
    target, drafter = load_pair(tmp_path, kind, family)
    for prompt in PROMPTS:
        known, stream = knowing(target, drafter, prompt, 256)
        for switches in (Switches(), Switches(adapt=False, ckpt=False)):
            found = generate(target, known, prompt, 256, switches=switches)  # type: ignore[arg-type]
            assert list(found.tokens) == stream


@pytest.mark.stress
@pytest.mark.parametrize("family", FAMILIES)
def test_three_prompts_and_256_tokens_are_the_v4_trunks_own(family: str) -> None:
    target = V4Target(speaking_engine("0731", max_seq=320))
    device = target.engine.last.device
    drafter = load_draft(made_drafter(family, target, device, block=6), device)
    for prompt in PROMPTS:
        known, stream = knowing(target, drafter, prompt, 256)
        assert list(generate(target, known, prompt, 256).tokens) == stream  # type: ignore[arg-type]

"""A hybrid target of routed experts: streams, settings and bursts, as for the other targets."""

from typing import Any

import numpy as np
import pytest

from dsv4.drafters.sampler import DeviceSampler
from dsv4.speculation import session
from dsv4.speculation.loops import generate, plain
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from tests.drafters.pairs import FAMILIES, Knowing, load_pair
from tests.speculation.refusing import refuses

PROMPT = [3, 14, 15, 92, 65]
LENGTH = 12
SETTINGS = {
    "default": Switches(),
    "whole window": Switches(adapt=False),
    "two rows": Switches(verify_t=2),
    "three rows": Switches(verify_t=3),
    "replayed": Switches(ckpt=False),
    "gated": Switches(gate=True),
    "fresh snapshots": Switches(batch_states=False),
    "read at once": Switches(defer=False),
    "ladder": Switches(policy="ladder"),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each drafter knows two thirds of the target's continuation."""
    found = {}
    for family in FAMILIES:
        target, drafter = load_pair(tmp_path_factory.mktemp(f"moe-{family}"), "moe", family)
        assert target.config.routed == (0, 1, 2, 3)
        stream = plain(target, PROMPT, LENGTH + 10)
        wrong = np.random.default_rng(7).random(64) < 1 / 3
        found[family] = target, Knowing(drafter, stream, wrong, len(PROMPT)), stream
    return found


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.stress] if f == "dflash2" else []) for f in FAMILIES],
)
def test_a_greedy_stream_is_the_targets_own(family: str, pairs: Any) -> None:
    target, drafter, stream = pairs[family]
    settings = dict(SETTINGS)
    if family == "dspark":
        settings |= {p: Switches(policy=p) for p in ("confidence", "confidence-slot")}
    for name, switches in settings.items():
        found = generate(target, drafter, PROMPT, LENGTH, switches=switches)
        assert list(found.tokens) == stream[:LENGTH], name
        if name != "two rows":
            assert found.stats.tokens_per_round > 1.2, name


def test_no_run_emits_more_than_it_was_asked_for(pairs: Any) -> None:
    target, drafter, stream = pairs["dspark"]
    for count in (0, 1, 2, 7):
        assert list(generate(target, drafter, PROMPT, count).tokens) == stream[:count]


@pytest.mark.parametrize("sampling", [None, SpecSampling(0.8, seed=5, top_k=20, top_p=0.95)])
def test_a_session_gives_the_same_stream_however_it_is_cut(
    sampling: SpecSampling | None, pairs: Any
) -> None:
    for family in ("dspark", "dflash2"):
        target, drafter, stream = pairs[family]
        sampler, streams = DeviceSampler(target.ops), []
        for cut in (10, 3, 1):
            s = session.new(target, drafter, PROMPT, 60, sampling, sampler=sampler)
            out: list[int] = []
            while len(out) < 10:
                out += session.burst(s, min(cut, 10 - len(out)))[0]
            streams.append(out[:10])
        assert streams[0] == streams[1] == streams[2]
        assert sampling is not None or streams[0] == stream[:10]


def test_rounds_that_the_host_looks_into_are_not_recorded(pairs: Any) -> None:
    target, drafter, _ = pairs["dspark"]
    with refuses("switch"):
        generate(target, drafter, PROMPT, 4, switches=Switches(verify_graph=True))

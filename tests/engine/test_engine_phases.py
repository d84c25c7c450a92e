"""Phases: nesting, what is counted where, and that a profile changes no bytes."""

from __future__ import annotations

import pytest

from dsv4.engine import phases
from dsv4.engine.peers import probe_peers
from dsv4.errors import Refusal
from dsv4.runtime.hostdevice import HostDevice
from tests.engine.engines import same_bytes, tiny_engine, tokens


@pytest.fixture(autouse=True)
def forgotten():
    phases.reset()
    yield
    phases.reset()


def test_a_phase_without_a_profile_leaves_nothing() -> None:
    with phases.phase("step"):
        pass
    assert not phases.times()


def test_time_inside_an_inner_phase_is_not_the_outer_ones_own() -> None:
    with phases.phase("outer", profile="sync"):
        for _ in range(3):
            with phases.phase("inner", profile="sync"):
                sum(range(1000))
    outer, inner = phases.times()["outer"], phases.times()["inner"]
    assert (outer.calls, inner.calls) == (1, 3)
    assert inner.exclusive_s == inner.inclusive_s > 0
    assert outer.inclusive_s >= outer.exclusive_s + inner.inclusive_s - 1e-9


def test_a_phase_that_fails_is_closed() -> None:
    with pytest.raises(ValueError), phases.phase("outer", profile="sync"):
        with phases.phase("inner", profile="sync"):
            raise ValueError
    with phases.phase("after", profile="sync"):
        pass
    after = phases.times()["after"]
    assert after.inclusive_s == after.exclusive_s


def test_the_report_is_sorted_by_own_time_and_says_how_it_was_measured() -> None:
    with phases.phase("long", profile="sync"):
        sum(range(200_000))
    with phases.phase("short", profile="sync"):
        pass
    lines = phases.report("decode", 2, plain_step_s=1.0).splitlines()
    assert lines[0].startswith("decode: 2 rounds, waits")
    assert [line.split()[0] for line in lines[2:]] == ["long", "short", "sum"]
    assert "of a step" in lines[1]
    assert "of a step" not in phases.report("decode", 2)


def test_a_profile_changes_no_bytes_and_names_every_phase() -> None:
    ids, rows = tokens(14), []
    for profile in ("off", "sync"):
        engine = tiny_engine(profile=profile)
        state = engine.alloc_decode_state()
        engine.prefill_with_cache(ids[:12], state)
        rows.append([engine.decode_step(int(t), state) for t in ids[12:]])
    for plain, profiled in zip(*rows, strict=True):
        assert same_bytes(plain, profiled)
    assert {"streams", "queries", "attention", "experts", "head"} <= set(phases.times())


class Lossy(HostDevice):
    """Copies from other devices arrive with one bit wrong, from some size on."""

    def receive(self, array, source, sender):
        super().receive(array, source, sender)
        if array.size >= 64 << 10:
            array[5] ^= 4


def test_copies_between_stages_are_probed_both_ways() -> None:
    good, lossy = HostDevice(), Lossy()
    sizes = (16 << 10, 64 << 10)
    probe_peers((good, HostDevice()), sizes=sizes)
    probe_peers((lossy, lossy), sizes=sizes)
    for devices in ((good, lossy), (lossy, good)):
        with pytest.raises(Refusal, match="65536 bytes.*\n.*first byte 5"):
            probe_peers(devices, sizes=sizes)


def test_the_probe_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_PEER_PROBE_POISON", "1")
    with pytest.raises(Refusal, match="arrived wrong"):
        probe_peers((HostDevice(), HostDevice()), sizes=(16 << 10,))

"""The V4 trunk as a target: its rows, commits, taps and streams, and the drafters it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4.drafters.sampler import DeviceSampler
from dsv4.drafters.weights import load_draft
from dsv4.errors import StateError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.speculation import session
from dsv4.speculation.loops import generate, plain
from dsv4.speculation.sampling import SpecSampling
from dsv4.speculation.switches import Switches
from dsv4.targets.dsv4 import V4Target
from dsv4.targets.protocol import TapSink
from tests.drafters.pairs import FAMILIES, Knowing, write_drafter
from tests.drafters.rows import assert_rows_are_single_steps
from tests.engine.engines import tiny_engine
from tests.engine.speculation import speaking_engine
from tests.speculation.refusing import refuses

PROMPT = [3, 14, 15, 92, 65, 35]
IDS = [89, 79, 32, 38, 46, 26, 43, 38, 32, 17, 200]
LENGTH = 14
FITS: dict[str, Any] = dict(hidden_size=128, vocab_size=256)


def trunk(stages: int = 1) -> V4Target:
    return V4Target(tiny_engine(stages=stages))


def fitting(folder: Path, family: str, target: V4Target, **changes: Any) -> Any:
    return load_draft(
        write_drafter(folder / family, family, **(FITS | changes)),
        target.engine.last.device,
        precision="bf16",
        target_vocab=target.vocab,
        target_layers=target.n_layers,
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Drafters that fit, each of which knows two thirds of what the trunk says."""
    target = trunk()
    stream = plain(target, PROMPT, LENGTH + 12)
    wrong = np.random.default_rng(7).random(64) < 1 / 3
    folder = tmp_path_factory.mktemp("v4")
    return {
        family: (
            target,
            Knowing(fitting(folder, family, target), stream, wrong, len(PROMPT), target.vocab),
            stream,
        )
        for family in FAMILIES
    }


def test_rows_verified_together_are_single_steps_byte_for_byte() -> None:
    # More rows than a step of the engine takes: they go through it in several.
    model = trunk()
    assert_rows_are_single_steps(model, PROMPT, IDS, 40)


def test_a_round_is_what_the_engine_itself_decodes() -> None:
    model = trunk()
    state = model.engine.alloc_decode_state(rows=1)
    model.engine.prefill_with_cache(PROMPT, state)
    cache = model.new_cache(40)
    model.prime(PROMPT, cache)
    rows = model.verify(IDS[:5], 6, cache, want="logits").logits
    for token, row in zip(IDS[:5], rows, strict=True):
        assert model.engine.decode_step(token, state).tobytes() == row.tobytes()


def test_a_commit_leaves_the_bytes_of_restore_and_replay() -> None:
    model = trunk()
    cache = model.new_cache(40)
    model.prime(PROMPT, cache)
    snap = model.snapshot(cache)
    for keep in (1, 2, 4, 9):
        out = model.verify(IDS[:10], 6, cache, ckpt=True)
        model.commit_prefix(cache, snap, out.ckpt, keep)
        committed = model.state_bytes(cache)
        after = model.verify(IDS[keep : keep + 1], 6 + keep, cache, want="logits").logits.tobytes()
        model.restore(cache, snap)
        replayed = model.verify(IDS[:keep], 6, cache)
        assert np.array_equal(replayed.argmax, out.argmax[:keep])
        assert model.state_bytes(cache) == committed
        again = model.verify(IDS[keep : keep + 1], 6 + keep, cache, want="logits").logits
        assert again.tobytes() == after
        model.restore(cache, snap)


def test_taps_are_means_of_the_streams_after_each_layer_in_the_drafters_order() -> None:
    model = trunk()
    c, order = model.engine.config, (3, 1)
    cache = model.new_cache(40)
    sink = TapSink(order, model.tap_buffer(6, 2 * c.dim), c.dim, 6)
    cache.tap_sink = sink
    model.prime(PROMPT, cache)
    captured = _after_layers(model)
    for place, layer in enumerate(order):
        mean = captured[layer].mean(axis=1)
        own = sink.buf[:, place * c.dim : (place + 1) * c.dim]
        np.testing.assert_allclose(own, mean, rtol=2e-6, atol=2e-6)


def _after_layers(model: V4Target) -> dict[int, np.ndarray]:
    from dsv4.engine.capture import Capture

    capture = Capture()
    model.engine.forward(PROMPT, capture)
    return {n: np.asarray(capture.layer_out[n], np.float64) for n in range(model.n_layers)}


def test_tokens_may_come_from_the_device_and_stages_may_be_two() -> None:
    one, two = trunk(), trunk(stages=2)
    caches = [m.new_cache(16) for m in (one, two)]
    for model, cache in zip((one, two), caches, strict=True):
        model.prime(PROMPT, cache)
    numbers = one.verify([1, 2, 3], 6, caches[0], want="logits").logits
    array = two.verify(two.ops.ints([1, 2, 3]), 6, caches[1], want="logits").logits
    assert numbers.tobytes() == array.tobytes()
    assert one.embed([5, 7]).tobytes() == two.embed(two.ops.ints([5, 7])).tobytes()


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.stress] if f == "dflash2" else []) for f in FAMILIES],
)
def test_a_greedy_stream_is_the_trunks_own(family: str, pairs: Any) -> None:
    target, drafter, stream = pairs[family]
    settings = {
        "default": Switches(),
        "whole window": Switches(adapt=False),
        "narrow": Switches(verify_t=2),
        "replayed": Switches(ckpt=False),
        "gated": Switches(gate=True),
        "read at once": Switches(defer=False),
    }
    for name, switches in settings.items():
        found = generate(target, drafter, PROMPT, LENGTH, switches=switches)
        assert list(found.tokens) == stream[:LENGTH], name
        if name != "narrow":
            assert found.stats.tokens_per_round > 1.2, name


def test_a_trunk_that_speaks_is_drafted_for_too(tmp_path: Path) -> None:
    target = V4Target(speaking_engine("0731"))
    stream = plain(target, PROMPT, 10)
    assert len(set(stream)) > 5
    own = fitting(tmp_path, "dspark", target, vocab_size=target.vocab,
                  own_mask_token_id=7, hidden_size=target.hidden)  # fmt: skip
    assert list(generate(target, own, PROMPT, 10).tokens) == stream


def test_rounds_are_replayed_where_the_engine_records_them(pairs: Any) -> None:
    target, drafter, stream = pairs["dspark"]
    with refuses("switch"):
        generate(target, drafter, PROMPT, 4, switches=Switches(verify_graph=True))
    recording = V4Target(tiny_engine(graphs="on"))
    found = generate(recording, drafter, PROMPT, LENGTH, switches=Switches(verify_graph=True))
    assert list(found.tokens) == stream[:LENGTH]


@pytest.mark.parametrize("sampling", [None, SpecSampling(0.8, seed=5, top_k=20, top_p=0.95)])
def test_a_session_gives_the_same_stream_however_it_is_cut(
    sampling: SpecSampling | None, pairs: Any
) -> None:
    for family in ("dspark", "dflash2"):
        target, drafter, stream = pairs[family]
        streams = []
        for cut in (10, 1):
            s = session.new(
                target, drafter, PROMPT, 60, sampling, sampler=DeviceSampler(target.ops)
            )
            out: list[int] = []
            while len(out) < 10:
                out += session.burst(s, min(cut, 10 - len(out)))[0]
            streams.append(out[:10])
        assert streams[0] == streams[1]
        assert sampling is not None or streams[0] == stream[:10]


def test_a_wide_block_is_verified_in_several_steps(tmp_path: Path) -> None:
    target = trunk()
    stream = plain(target, PROMPT, 24)
    own = fitting(tmp_path, "dspark", target, block_size=12)
    knowing = Knowing(own, stream, [False], len(PROMPT), target.vocab)
    found = generate(target, knowing, PROMPT, 20, switches=Switches(policy="ladder"))
    assert list(found.tokens) == stream[:20]
    assert found.stats.rounds[0].accepted == 12


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (dict(own_target_layer_ids=[0, 4], num_target_layers=8), "tap-range"),
        (dict(vocab_size=257), "markov-vocab"),
    ],
)
def test_a_drafter_of_another_trunk_is_refused_while_it_is_loaded(
    changes: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with refuses(code):
        fitting(tmp_path, "dspark", trunk(), **changes)


def test_a_drafter_that_does_not_fit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    target = trunk()

    def other(name: str = "fits", **changes: Any) -> Any:
        folder = write_drafter(tmp_path / name, "dflash", **(FITS | changes))
        return load_draft(folder, HostDevice(), precision="bf16")

    with refuses("hidden-mismatch"):
        generate(target, other("narrow", hidden_size=64), PROMPT, 4)
    with refuses("mask-id"):
        generate(target, other("masked", vocab_size=None, own_mask_token_id=256), PROMPT, 4)
    far = other("far", own_target_layer_ids=[0, 4], num_target_layers=8)
    with refuses("tap-range"):
        generate(target, far, PROMPT, 4)
    with refuses("target-context"):
        generate(target, other(), PROMPT, 50)


def test_calls_out_of_order_are_refused() -> None:
    model = trunk()
    cache = model.new_cache(12)
    model.prime(PROMPT, cache)
    with pytest.raises(StateError, match="begins with its prompt"):
        model.prime(PROMPT, cache)
    with pytest.raises(StateError, match="stands at 6"):
        model.verify([1], 5, cache)
    with pytest.raises(StateError, match="holds 12"):
        model.verify([1] * 7, 6, cache)
    snap = model.snapshot(cache)
    model.verify([1, 2], 6, cache)
    for keep in (0, 2):
        with pytest.raises(StateError, match="at least one"):
            model.commit_prefix(cache, snap, (), keep)
    small = V4Target(tiny_engine(prefill_chunk="8"))
    cache = small.new_cache(40)
    small.prime(PROMPT, cache)
    snap = small.snapshot(cache)
    small.verify(IDS[:9], 6, cache)
    with pytest.raises(StateError, match="room for 8 rows"):
        small.restore(cache, snap)

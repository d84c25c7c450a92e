"""Targets on a device: rows verified together give the bytes of single steps, and commits too."""

from pathlib import Path

import numpy as np
import pytest

from dsv4.errors import StateError
from dsv4.runtime.hostdevice import HostDevice
from dsv4.speculation.refusals import DrafterRefusal
from dsv4.targets.config import target_config
from dsv4.targets.load import load_target
from dsv4.targets.protocol import TapSink
from dsv4.targets.qwen3 import PRIME_ROWS, QwenTarget
from tests.drafters.pairs import TARGETS, target_content, write_target
from tests.drafters.rows import assert_rows_are_single_steps
from tests.goldens import golden_folder
from tests.speculation.refusing import refuses

PROMPT = [3, 14, 15, 92, 65, 35]
IDS = [89, 79, 32, 38, 46, 26, 43, 38, 32]


def target(kind: str, folder: Path) -> QwenTarget:
    if kind == "moe":
        return load_target(golden_folder("qwen3-next-moe"), HostDevice())
    return load_target(write_target(folder / kind, kind), HostDevice())


@pytest.mark.parametrize("kind", [*TARGETS, "moe"])
def test_rows_verified_together_are_single_steps_byte_for_byte(kind: str, tmp_path: Path) -> None:
    model = target(kind, tmp_path)
    assert_rows_are_single_steps(model, PROMPT, IDS, 32)


@pytest.mark.parametrize("kind", [*TARGETS, "moe"])
def test_a_commit_leaves_the_bytes_of_restore_and_replay(kind: str, tmp_path: Path) -> None:
    model = target(kind, tmp_path)
    cache = model.new_cache(32)
    model.prime(PROMPT, cache)
    snap = model.snapshot(cache)
    for keep in (1, 2, 4):
        out = model.verify(IDS[:5], 6, cache, ckpt=True)
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


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("want", ["argmax", "logits"])
def test_a_replayed_round_gives_the_bytes_of_a_launched_one_at_any_position(
    kind: str, want: str, tmp_path: Path
) -> None:
    model = target(kind, tmp_path)
    launched, replayed = model.new_cache(40), model.new_cache(40)
    for cache in (launched, replayed):
        model.prime(PROMPT, cache)
    for turn in range(6):
        # A hybrid target alternates between two states, so each of its rounds comes twice as late.
        ids, start = IDS[turn : turn + 4], launched.pos
        found = []
        for cache, graph in ((launched, False), (replayed, True)):
            snap = model.snapshot(cache)
            cache.tap_sink = TapSink((0, 2), model.tap_buffer(4, 128), 64, 4)
            out = model.verify(
                model.ops.ints(ids) if turn % 2 else ids,
                start,
                cache,
                want=want,
                ckpt=True,
                graph=graph,
            )
            model.commit_prefix(cache, snap, out.ckpt, 1 + turn % 3)
            said = out.logits if want == "logits" else out.argmax
            found.append((said.tobytes(), cache.tap_sink.buf.tobytes(), model.state_bytes(cache)))
            for kept in (cache.k, cache.v):
                found[-1] += tuple(kept[i][: cache.pos].tobytes() for i in kept)
        assert found[0] == found[1], turn
    assert all(round_.graph is not None for round_ in replayed.graphs.values())
    assert len(replayed.graphs) == (2 if kind == "hybrid" else 1)
    assert not launched.graphs


def test_a_prompt_may_be_longer_than_a_chunk_and_fills_all_taps(tmp_path: Path) -> None:
    model = target("dense", tmp_path)
    prompt = [i % 97 for i in range(PRIME_ROWS + 5)]
    cache, whole = model.new_cache(PRIME_ROWS + 8), model.new_cache(PRIME_ROWS + 8)
    sink = TapSink((1,), model.tap_buffer(len(prompt), 64), 64, len(prompt))
    cache.tap_sink = sink
    row = model.prime(prompt, cache)
    final, _ = model.forward(prompt, whole)
    assert row.tobytes() == model.head(final[-1:])[0].tobytes()
    assert sink.buf.any(axis=1).all()
    assert cache.pos == whole.pos == len(prompt)


def test_tokens_may_come_from_the_device(tmp_path: Path) -> None:
    model = target("dense", tmp_path)
    caches = [model.new_cache(16) for _ in range(2)]
    for cache in caches:
        model.prime(PROMPT, cache)
    numbers = model.verify([1, 2, 3], 6, caches[0]).argmax
    array = model.verify(model.ops.ints([1, 2, 3]), 6, caches[1]).argmax
    assert np.array_equal(numbers, array)


def test_calls_out_of_order_are_refused(tmp_path: Path) -> None:
    model = target("hybrid", tmp_path)
    cache = model.new_cache(8)
    model.prime(PROMPT, cache)
    with pytest.raises(StateError, match="position"):
        model.verify([1], 5, cache)
    with pytest.raises(StateError, match="holds 8"):
        model.verify([1, 2, 3], 6, cache)
    snap = model.snapshot(cache)
    out = model.verify([1, 2], 6, cache, ckpt=True)
    for keep in (0, 2):
        with pytest.raises(StateError, match="at least one"):
            model.commit_prefix(cache, snap, out.ckpt, keep)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (dict(model_type="gemma4"), "architecture"),
        (dict(attention_bias=True), "attention-bias"),
        (dict(hidden_size=None), "key-missing"),
        (dict(hidden_size=0), "value"),
        (dict(num_key_value_heads=3), "head-groups"),
        (dict(rope_parameters=dict(rope_type="yarn")), "rope-type"),
    ],
)
def test_a_target_that_breaks_a_rule_is_refused_by_its_code(
    change: dict[str, object], code: str
) -> None:
    with refuses(code):
        target_config(target_content("dense") | change)


def test_files_of_another_target_are_refused(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", "dense")
    text = (folder / "config.json").read_text().replace('"vocab_size": 97', '"vocab_size": 96')
    (folder / "config.json").write_text(text)
    with pytest.raises(DrafterRefusal) as caught:
        load_target(folder, HostDevice())
    assert caught.value.code == "tensor-shape"


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("graph", [False, True])
def test_an_embedding_on_the_host_gives_the_same_bytes(
    kind: str, graph: bool, tmp_path: Path
) -> None:
    folder = write_target(tmp_path / kind, kind)
    models = [load_target(folder, HostDevice(), host_embedding=h) for h in (False, True)]
    # A head of its own leaves nothing of the table on the device.
    assert (models[1].table is None) == (kind == "hybrid")
    assert models[0].embed([5, 96]).tobytes() == models[1].embed([5, 96]).tobytes()
    caches = [m.new_cache(32) for m in models]
    for model, cache in zip(models, caches, strict=True):
        model.prime(PROMPT, cache)
    for turn in range(4):
        ids, start = IDS[turn : turn + 3], 6 + 3 * turn
        rows = [
            m.verify(m.ops.ints(ids), start, c, want="logits", graph=graph and m is models[1])
            for m, c in zip(models, caches, strict=True)
        ]
        assert rows[0].logits.tobytes() == rows[1].logits.tobytes()

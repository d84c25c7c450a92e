"""What every target owes its drafters: rows verified together are single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4.targets.protocol import TapSink


def assert_rows_are_single_steps(
    model: Any, prompt: Sequence[int], ids: Sequence[int], max_ctx: int
) -> None:
    """Logits, taps and the state behind one verify are those of a verify for each token."""
    one, many = model.new_cache(max_ctx), model.new_cache(max_ctx)
    for cache in (one, many):
        model.prime(prompt, cache)
    width, start = 2 * model.hidden, len(prompt)
    many.tap_sink = TapSink((0, 2), model.tap_buffer(len(ids), width), model.hidden, len(ids))
    together = model.verify(ids, start, many, want="logits").logits
    for j, token in enumerate(ids):
        one.tap_sink = TapSink((0, 2), model.tap_buffer(1, width), model.hidden, 1)
        alone = model.verify([token], start + j, one, want="logits").logits
        assert alone[0].tobytes() == together[j].tobytes()
        assert one.tap_sink.buf[0].tobytes() == many.tap_sink.buf[j].tobytes()
    assert model.state_bytes(one) == model.state_bytes(many)

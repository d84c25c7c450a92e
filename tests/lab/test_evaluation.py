"""Windows, scores, acceptance and calibration, each against what is worked out by hand."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4.checkpoint.config import load_config
from dsv4.engine.engine import Engine
from dsv4.errors import Refusal
from dsv4.speculation.accept import accept_prefix
from lab.debug.subjects import open_model
from lab.evaluation.calibration import calibration
from lab.evaluation.drafting import ForcedRound, acceptance, forced_rounds
from lab.evaluation.free import free_runs, prompts_of
from lab.evaluation.scoring import (
    SeeRows,
    agreement,
    engine_speaker,
    oracle_speaker,
    score,
    total_bits,
)
from lab.evaluation.texts import Text, gzip_size, packed, read_texts, xz_size
from lab.evaluation.windows import Overlap, overlap_of
from lab.generation import generate
from lab.tokenizer import open_tokenizer
from tests.engine.speculation import speaking_engine

WORDS = b"def area(width, height):\n    return width * height\n"


def text_of(tokens: Sequence[int], unscored: int = 0) -> Text:
    """A text of these tokens, one byte each."""
    return Text(Path("text"), bytes(len(tokens)), tuple(tokens), unscored)


def words(folder: Path, content: bytes = WORDS) -> Text:
    """A text in the tokens of a folder."""
    tokenizer = open_tokenizer(folder, load_config(folder))
    return Text(Path("words"), content, tuple(tokenizer.encode(content)), 0)


@given(st.integers(1, 200), st.integers(2, 40), st.data())
def test_every_token_is_scored_once_with_the_context_that_the_rule_says(
    count: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    scored = []
    for window in Overlap(context, stride).windows(count):
        assert 0 <= window.start <= window.fresh < window.end <= count - 1
        assert window.end - window.start <= context
        for row in range(window.fresh, window.end):
            scored.append(row + 1)
            seen = row + 1 - window.start
            assert seen == row + 1 or seen >= context - stride + 1
    assert scored == list(range(1, count))


def test_windows_that_cannot_be_are_refused() -> None:
    assert overlap_of(100, None, None, "x") == Overlap(100, 50)
    assert overlap_of(10**6, None, None, "x") == Overlap(8192, 4096)
    for context, stride, says in ((101, None, "2..100"), (1, None, "2..100"), (50, 51, "1 to 50")):
        with pytest.raises(Refusal, match=says):
            overlap_of(100, context, stride, "x")


def test_bits_are_those_of_a_model_worked_out_by_hand() -> None:
    # Logits ln 3 for "the same token again", 0 for the two others: probabilities 3/5, 1/5, 1/5.
    def speak(ids: Sequence[int], see: SeeRows) -> None:
        rows = np.zeros((len(ids), 3), np.float32)
        rows[np.arange(len(ids)), ids] = math.log(3.0)
        see(0, rows[:2])
        see(2, rows[2:])

    text = text_of([0, 0, 1, 1, 2], unscored=1)
    same, other = -math.log2(3 / 5), -math.log2(1 / 5)
    for overlap in (Overlap(4, 4), Overlap(2, 1), Overlap(3, 2)):
        made = score(speak, text, overlap)
        np.testing.assert_allclose(made.bits, [same, other, same, other], rtol=1e-6)
        assert made.top1.tolist() == [0, 0, 1, 1]
        assert total_bits([text], [made]) == pytest.approx(8 + 2 * same + 2 * other)


def test_agreement_counts_places_and_bits() -> None:
    def always(token: int) -> tuple[np.ndarray, np.ndarray]:
        def speak(ids: Sequence[int], see: SeeRows) -> None:
            see(0, np.tile(np.where(np.arange(4) == token, 1.0, 0.0), (len(ids), 1)))

        return score(speak, text_of([0, 1, 2, 1]), Overlap(8, 8))

    found = agreement([text_of([0, 1, 2, 1])], [always(1)], [always(2)])
    assert (found.positions, found.same, found.top1) == (3, 0, 0.0)
    # Two of three tokens get a nat less, one a nat more, over four bytes.
    assert found.difference == pytest.approx(1 / math.log(2) / 4)
    assert found.relative == pytest.approx(
        found.difference / (found.bits_per_byte - found.difference)
    )


def test_the_unrounded_engine_scores_as_the_smooth_law(byte_folder: Path) -> None:
    engine = Engine.load(byte_folder, backend="host", max_seq=40, quantisers="off")
    text, overlap = words(byte_folder), Overlap(40, 20)
    mine = score(engine_speaker(engine, "prompt"), text, overlap)
    law = score(oracle_speaker(open_model(byte_folder, "smooth")), text, overlap)
    assert len(mine.bits) == len(WORDS)
    np.testing.assert_allclose(mine.bits, law.bits, atol=2e-4)
    found = agreement([text], [mine], [law])
    assert found.same == found.positions and abs(found.relative) < 1e-5


def test_rows_of_a_prompt_and_of_decoding_score_to_the_same_bytes(byte_folder: Path) -> None:
    engine = Engine.load(byte_folder, backend="host", max_seq=30, prefill_gemm="rows")
    text, overlap = words(byte_folder, WORDS[:40]), Overlap(30, 15)
    by_prompt = score(engine_speaker(engine, "prompt"), text, overlap)
    by_steps = score(engine_speaker(engine, "steps"), text, overlap)
    assert by_prompt.bits.tobytes() == by_steps.bits.tobytes()
    assert by_prompt.top1.tolist() == by_steps.top1.tolist()


def test_a_forced_round_is_judged_by_what_plain_decoding_would_write(byte_folder: Path) -> None:
    engine = Engine.load(byte_folder, backend="host", max_seq=64, drafter="dspark")
    # Half of the model's own words and half of ours, so that rounds are kept and taken back.
    own = generate(engine, [256, 100], 20).tokens
    text = text_of([256, 100, *own, *WORDS[:20]])
    made = forced_rounds(engine, [text], 60, every=7, most=100)
    assert [r.prefix for r in made] == list(range(7, len(text.tokens), 7))
    for found in made:
        prefix = list(text.tokens[: found.prefix + 1])
        plain = generate(engine, prefix, len(found.drafts)).tokens
        assert found.accepted == accept_prefix([prefix[-1], *found.drafts], [*plain, -1])
    assert {r.accepted for r in made} != {0} and made[0].confidence is not None


@pytest.mark.parametrize(("layout", "block"), [("0731", 3), ("nextn", 1)])
def test_a_drafter_that_knows_the_language_is_always_right(layout: str, block: int) -> None:
    engine = speaking_engine(layout, 1.0)
    made = forced_rounds(engine, [text_of(WORDS[:30])] * 2, 30, every=10, most=4)
    assert [(r.prefix, r.accepted, len(r.drafts)) for r in made] == [
        (10, block, block), (20, block, block),
    ] * 2  # fmt: skip
    assert acceptance(made).tokens_per_round == 1 + block
    assert (calibration(made) is None) == (layout == "nextn")
    (written,) = free_runs([engine], [text_of(WORDS[:30])], 30, prompts=2, length=7)
    assert (written.prompts, written.tokens, written.differing) == (2, 14, 0)
    assert all(accepted == judged for accepted, judged in written.places)


def test_rounds_are_spread_over_texts_and_contexts(byte_folder: Path) -> None:
    engine = Engine.load(byte_folder, backend="host", max_seq=40, drafter="dspark")
    texts = [text_of([256, *WORDS]), text_of([256, *WORDS[:30]])]
    made = forced_rounds(engine, texts, 30, every=4, most=6)
    # Three pieces of 30, 22 and 30 tokens (one of a single token is too short) share six rounds.
    assert [r.prefix for r in made] == [10, 20, 8, 16, 10, 20]
    assert forced_rounds(engine, texts[1:], 30, every=4, most=6)[0].prefix == 5
    assert forced_rounds(engine, [text_of([256, 97])], 30, every=4, most=6) == []


def test_prompts_end_at_even_distances_and_hold_what_fits() -> None:
    texts = [text_of(range(10)), text_of(range(20, 40))]
    assert [p[-1] for p in prompts_of(texts, 100, 3)] == [9, 29, 39]
    assert list(prompts_of(texts, 4, 3))[1] == (26, 27, 28, 29)
    assert [len(p) for p in prompts_of(texts, 100, 2)] == [5, 20]
    assert len(list(prompts_of([text_of(range(3))], 9, 50))) == 3


def rounds_by_hand() -> list[ForcedRound]:
    """Three rounds of three drafts, with scores that say 0.88, 0.5 and 0.12."""
    return [
        ForcedRound(1, (7, 7, 7), 3, (2.0, 0.0, -2.0)),
        ForcedRound(2, (7, 7, 7), 1, (2.0, -2.0, 2.0)),
        ForcedRound(3, (7, 7, 7), 0, (-2.0, 2.0, 2.0)),
    ]


def test_acceptance_is_counted_up_to_the_first_wrong_draft() -> None:
    whole = acceptance(rounds_by_hand())
    assert whole.places == ((2, 3), (1, 2), (1, 1))
    assert whole.tokens_per_round == pytest.approx(1 + 4 / 3) and whole.rows == 4
    # A window of 0.5 lets two, one and no drafts through.
    windowed = acceptance(rounds_by_hand(), (0.5, 0))
    assert windowed.places == ((2, 2), (1, 1))
    assert windowed.tokens_per_round == 2.0 and windowed.rows == 2.0
    floor = acceptance(rounds_by_hand(), (0.5, 2))
    assert floor.rows == 3.0 and floor.places == ((2, 3), (1, 2))


def test_a_score_that_is_no_number_lets_nothing_through_and_is_not_counted() -> None:
    made = [ForcedRound(1, (7, 7), 2, (math.nan, 3.0))]
    assert acceptance(made, (0.5, 0)).tokens_per_round == 1.0
    told = calibration(made)
    assert told is not None and (told.count, told.ignored) == (1, 1)
    assert calibration([ForcedRound(1, (7,), 0, (math.nan,))]) is None
    assert calibration([ForcedRound(1, (7,), 1, None)]) is None


def test_calibration_bins_are_those_worked_out_by_hand() -> None:
    told = calibration(rounds_by_hand(), bins=2)
    assert told is not None and told.count == 6 and told.accepted == pytest.approx(4 / 6)
    high, low = 1 / (1 + math.exp(-2.0)), 1 / (1 + math.exp(2.0))
    first, second = told.bins
    # Judged: 0.88, 0.5, 0.12 of the first round, 0.88, 0.12 of the second, 0.12 of the third.
    assert (first.count, second.count) == (3, 3)
    assert first.confidence == pytest.approx(low) and first.accepted == pytest.approx(1 / 3)
    assert second.confidence == pytest.approx((2 * high + 0.5) / 3) and second.accepted == 1.0
    gaps = (1 / 3 - low, 1 - (2 * high + 0.5) / 3)
    assert told.error == pytest.approx(sum(gaps) / 2)


@pytest.mark.parametrize(
    ("tool", "size"), [("gzip", gzip_size), ("xz", xz_size)], ids=["gzip", "xz"]
)
def test_packed_sizes_are_those_of_the_programs(tool: str, size: object) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed, so its size cannot be taken")
    content = Path(__file__).read_bytes()
    options = ["-9cn"] if tool == "gzip" else ["-9c"]
    done = subprocess.run([tool, *options], input=content, capture_output=True, check=True)
    assert callable(size) and size(content) == len(done.stdout)


def test_files_are_packed_alone_and_as_one() -> None:
    texts = [text_of(range(50)), text_of(range(50))]
    found = packed(texts)
    assert found.joined_xz_bytes < found.xz_bytes == 2 * xz_size(bytes(50))
    assert found.joined_gzip_bytes < found.gzip_bytes == 2 * gzip_size(bytes(50))


def test_texts_are_cut_and_empty_or_missing_ones_refused(byte_folder: Path, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(byte_folder, load_config(byte_folder))
    file = tmp_path / "a.py"
    file.write_bytes(b"\xff\x00abc")
    (cut,) = read_texts([file], tokenizer, 3)
    assert cut.content == b"\xff\x00a" and cut.tokens == (256, 255, 0, 97) and cut.unscored == 0
    file.write_bytes(b"")
    with pytest.raises(Refusal, match=r"holds no byte(.|\n)*a\.py"):
        read_texts([file], tokenizer, None)
    with pytest.raises(Refusal, match="cannot be read"):
        read_texts([tmp_path / "none"], tokenizer, None)

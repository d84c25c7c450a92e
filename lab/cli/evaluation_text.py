"""What `dsv4-lab eval` says, as a document and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.cli import text
from lab.evaluation.drafting import Acceptance
from lab.evaluation.evaluate import Drafting, Evaluation
from lab.evaluation.free import FreeRuns
from lab.evaluation.scoring import Agreement, total_bits
from lab.evaluation.texts import Packed, Text, gzip_size, xz_size
from lab.evaluation.windows import Overlap


def document(
    folder: Path,
    texts: Sequence[Text],
    overlap: Overlap,
    by: str,
    made: Evaluation,
    others: Packed,
    second: Agreement | None,
    law: str | None,
    switches: Mapping[str, str | None],
) -> dict[str, Any]:
    """An evaluation, ready for JSON and the store.

    Units: bits over the bytes of the texts, wherever a name says bits per byte.
    """
    size = sum(len(t.content) for t in texts)
    files = [
        {
            "path": str(t.path),
            "size_bytes": len(t.content),
            "bits_per_byte": total_bits([t], [s]) / len(t.content),
            "gzip_bytes": gzip_size(t.content),
            "xz_bytes": xz_size(t.content),
        }
        for t, s in zip(texts, made.scored, strict=True)
    ]
    positions = sum(len(s.bits) for s in made.scored)
    right = sum(
        int((s.top1 == t.tokens[len(t.tokens) - len(s.top1) :]).sum())
        for t, s in zip(texts, made.scored, strict=True)
    )
    return {
        "model": str(folder),
        "files": files,
        "size_bytes": size,
        "positions": positions,
        "bits_per_byte": total_bits(texts, made.scored) / size,
        "top1_right": right / positions if positions else 0.0,
        "packed": {
            **asdict(others),
            "gzip_bits_per_byte": 8 * others.gzip_bytes / size,
            "xz_bits_per_byte": 8 * others.xz_bytes / size,
        },
        "windows": {"context": overlap.context, "stride": overlap.stride, "rule": overlap.rule},
        "by": by,
        "arms": made.arms,
        "device": made.device.name,
        "against": None if second is None else _second(second, law, switches),
        "drafter": None if made.drafting is None else _drafter(made.drafting),
        "written": None if made.written is None else _written(made.written),
        "written_against": (
            None
            if made.written_against is None
            else {**_written(made.written_against), "switches": dict(switches)}
        ),
    }


def _second(
    second: Agreement, law: str | None, switches: Mapping[str, str | None]
) -> dict[str, Any]:
    return {
        **asdict(second),
        "law": law,
        "switches": None if law is not None else dict(switches),
        "top1_agreement": second.top1,
    }


def _drafter(made: Drafting) -> dict[str, Any]:
    return {
        "block": made.block,
        "rounds": made.whole.rounds,
        "window_off": _acceptance(made.whole),
        "window_slot": {"tau": made.tau, **_acceptance(made.windowed)},
        "calibration": None if made.calibration is None else asdict(made.calibration),
    }


def _written(made: FreeRuns) -> dict[str, Any]:
    return {
        **asdict(made),
        "tokens_per_round": made.tokens_per_round,
        "plain_tokens_per_s": made.plain_tokens_per_s,
        "drafted_tokens_per_s": made.drafted_tokens_per_s,
    }


def _acceptance(found: Acceptance) -> dict[str, Any]:
    return {
        "tokens_per_round": found.tokens_per_round,
        "rows_per_round": found.rows,
        "acceptance": found.places,
    }


def show(found: Mapping[str, Any], record: int | None) -> None:
    """Print an evaluation for people."""
    windows = found["windows"]
    text.say(f"{found['model']}  {found['device']}, rows by {found['by']}")
    text.note(windows["rule"])
    rows = [
        (f["path"], f["size_bytes"], f["bits_per_byte"], *_packed_bits(f)) for f in found["files"]
    ]
    size, packed = found["size_bytes"], found["packed"]
    if len(rows) > 1:
        joined = (8 * packed["joined_gzip_bytes"] / size, 8 * packed["joined_xz_bytes"] / size)
        sums = (packed["gzip_bits_per_byte"], packed["xz_bits_per_byte"])
        rows.append(("all", size, found["bits_per_byte"], *sums))
        rows.append(("all as one file", size, None, *joined))
    text.say("\n" + text.table(("text", "bytes", "bits/byte", "gzip -9", "xz -9"), rows))
    share = found["bits_per_byte"] / packed["xz_bits_per_byte"]
    text.say(
        f"\n{share:.1%} of what xz -9 takes; the likeliest token is the text's at"
        f" {found['top1_right']:.2%} of the places"
    )
    if found["against"] is not None:
        _show_second(found["against"])
    if found["drafter"] is not None:
        _show_drafter(found["drafter"])
    if found["written"] is not None:
        _show_written(found["written"])
    if found["written_against"] is not None:
        _show_written(found["written_against"])
    if record is not None:
        text.note(f"record {record:04d}")


def _packed_bits(file: Mapping[str, Any]) -> tuple[float, float]:
    return 8 * file["gzip_bytes"] / file["size_bytes"], 8 * file["xz_bytes"] / file["size_bytes"]


def _named(switches: Mapping[str, str | None]) -> str:
    return " ".join(f"{k}={v}" for k, v in switches.items())


def _show_second(second: Mapping[str, Any]) -> None:
    name = f"law {second['law']}" if second["law"] else _named(second["switches"])
    text.say(
        f"{name}: {second['bits_per_byte']:.4f} bits/byte, {second['difference']:+.6f}"
        f" ({second['relative']:+.4%}); the same likeliest token at {second['same']} of"
        f" {second['positions']} places, {second['top1_agreement']:.3%}"
    )


def _show_drafter(drafter: Mapping[str, Any]) -> None:
    whole, slot = drafter["window_off"], drafter["window_slot"]
    text.say(f"\ndrafter, {drafter['rounds']} rounds of {drafter['block']} drafts behind prefixes")
    header = ("window", "tokens a round", "rows a round", "accepted of judged by place")
    rows = [
        (name, w["tokens_per_round"], w["rows_per_round"],
         " ".join(f"{a}/{n}" for a, n in w["acceptance"]))
        for name, w in (("off", whole), (f"slot {slot['tau']:g}", slot))
    ]  # fmt: skip
    text.say(text.table(header, rows))
    told = drafter["calibration"]
    if told is None:
        return
    bins = [
        (f"{b['low']:.1f}..{b['high']:.1f}", b["count"], b["confidence"], b["accepted"])
        for b in told["bins"]
        if b["count"]
    ]
    text.say("\n" + text.table(("confidence", "drafts", "mean", "accepted"), bins))
    text.say(
        f"expected calibration error {told['error']:.4f} over {told['count']} judged drafts;"
        f" {told['confidence']:.3f} confident, {told['accepted']:.3f} accepted in the mean"
    )


def _show_written(made: Mapping[str, Any]) -> None:
    word = text.verdict("FAIL" if made["differing"] else "SAME")
    where = " under " + _named(made["switches"]) if "switches" in made else ""
    if made["first"] is not None:
        prompt, place = made["first"]
        where += f", {made['differing']} of them differ, first prompt {prompt} at token {place}"
    places = " ".join(f"{a}/{n}" for a, n in made["places"])
    text.say(
        f"\n{word}  {made['tokens']} tokens behind {made['prompts']} prompts{where};"
        f" {made['tokens_per_round']:.2f} a round, accepted by place {places or '-'}"
    )
    text.say(
        f"      {made['plain_tokens_per_s']:.3g} tokens/s of plain steps,"
        f" {made['drafted_tokens_per_s']:.3g} with drafts, by medians"
    )

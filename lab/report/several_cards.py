"""What one model does on several cards, beside its targets: a part of `docs/speed.md`.

Made from documents of `dsv4-lab step`, as the README's tables are: a model in stages is more than
one graph, and `bench` times a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lab.report.markdown import markdown
from lab.report.runs import tables

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CardTarget:
    """Tokens a second to be reached on two cards. told: what a document says of it, or None.

    stretch: hoped for, not promised.
    """

    what: str
    least_per_s: float
    told: Callable[[Document], float | None]
    stretch: bool = False


def _one_stream(document: Document, joined: bool) -> float | None:
    steps = [s for s in document["steps"] if bool(s.get("joins")) is joined and s["graph_s"]]
    return max((s["rows"] / s["graph_s"] for s in steps if s["rows"] == 1), default=None)


def _in_layers(document: Document) -> float | None:
    return _one_stream(document, joined=False)


def _shared(document: Document) -> float | None:
    return _one_stream(document, joined=True)


def _two_streams(document: Document) -> float | None:
    found = [s["rows_per_s"] for s in document.get("streams") or () if s["streams"] == 2]
    return max(found, default=None)


MODEL: Final = "mint:flash,layers=43,experts=256"
"""What the targets are about: all of the model, which one card does not hold."""

TARGETS: Final = (
    CardTarget("layers split over two cards, one stream", 220, _in_layers),
    CardTarget("layers split over two cards, two streams in turns", 400, _two_streams),
    CardTarget("tensor parallel on two cards", 400, _shared),
    CardTarget("tensor parallel on two cards", 550, _shared, stretch=True),
)


def section(runs: Sequence[Document]) -> list[str]:
    """The paragraphs, from runs on more than one card; none without."""
    own = [d for d in runs if d["command"] == "step" and (d.get("cards") or 1) > 1]
    if not own:
        return []
    rows = []
    for target in TARGETS:
        values = [v for d in own if _counts(d) and (v := target.told(d)) is not None]
        value = max(values, default=None)
        met = "not measured" if value is None else "yes" if value >= target.least_per_s else "no"
        words = f"at least {target.least_per_s:g} tokens/s" + " (stretch)" * target.stretch
        rows.append((target.what, words, "-" if value is None else f"{value:.0f}", met))
    return [
        "## Several cards",
        "From documents of `dsv4-lab step`: a step of ranks or of stages is a graph for each card,"
        " timed by the host's clock from idle cards to idle cards.",
        markdown((f"`{MODEL}`", "target", "measured", "met"), rows),
        tables(own),
    ]


def _counts(document: Document) -> bool:
    return bool(document["cards"] == 2 and document["model"] == MODEL)

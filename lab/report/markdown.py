"""Pieces that the generated parts of the README share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def card(env: Mapping[str, Any], more: str = "") -> str:
    """The card in bold, with driver, compiler and commit.

    more: stands for the commit where there is none.
    """
    cuda, git = env.get("cuda") or {}, env.get("git") or {}
    facts = [f"nvrtc {cuda['nvrtc']}"] if cuda.get("nvrtc") else []
    if driver := (env.get("gpu_settings") or {}).get("driver"):
        facts.insert(0, f"driver {driver}")
    if git.get("commit"):
        facts.append(f"commit {git['commit'][:7]}")
    elif more:
        facts.append(more)
    return f"**{env.get('device') or env['cpu']['model']}** ({', '.join(facts)})"


def replace_between(text: str, begin: str, end: str, generated: str) -> str | None:
    """The text with the part between two markers replaced; None when a marker is missing."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    return f"{head}{begin}\n\n{generated}\n\n{end}{tail}" if found and closed else None

"""What a run leaves behind while it goes: a log, a progress line, and a state to resume from."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsv4.errors import Refusal
from tools.train.picture import picture
from tools.train.settings import Settings

LOG, STATE, PICTURE = "log.jsonl", "state.pt", "loss.svg"
_LINE_EVERY_S = 1.0
# Ways of stopping a run, not of running it: a resumed run may be given others.
_FREE = {"minutes", "draft_minutes", "evaluate_every"}


@dataclass(slots=True)
class Journal:
    """The folder of a run; quiet: no progress line."""

    folder: Path
    quiet: bool = False
    _shown: float = field(default=0.0)

    def write(self, **entry: Any) -> None:
        """One line of the log; numbers with six digits."""
        entry = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in entry.items()}
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def progress(self, text: str, *, last: bool = False) -> None:
        """Replace the progress line, at most once a second."""
        now = time.monotonic()
        if self.quiet or (now - self._shown < _LINE_EVERY_S and not last):
            return
        self._shown = now
        print(f"\r{text:<96}", end="\n" if last else "", file=sys.stderr, flush=True)

    def entries(self) -> Iterator[dict[str, Any]]:
        """The log so far."""
        if (self.folder / LOG).is_file():
            for line in (self.folder / LOG).read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def cut(self, phase: str, step: int) -> None:
        """Forget entries of a phase from `step` on: a resumed run writes them again."""
        kept = [e for e in self.entries() if e.get("phase") != phase or e["step"] < step]
        text = "".join(json.dumps(e) + "\n" for e in kept)
        (self.folder / LOG).write_text(text, encoding="utf-8")

    def draw(self) -> None:
        """The loss picture of the log, in bits per byte."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for e in self.entries():
            for key, name in (("loss_bits", "training"), ("held_out_bits", "held out")):
                if e["phase"] == "trunk" and key in e:
                    lines.setdefault(name, []).append((e["step"], min(e[key], 4.0)))
        if lines:
            text = picture("trunk", lines, x_name="step", y_name="bits per byte")
            (self.folder / PICTURE).write_text(text, encoding="utf-8")


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a run; a crash while writing leaves the one before."""
    partial = folder / f".{STATE}.partial"
    torch.save(dict(state), partial)
    os.replace(partial, folder / STATE)


def load_state(folder: Path, settings: Settings, device: torch.device) -> dict[str, Any] | None:
    """The state of a run that began earlier, or none.

    Errors: Refusal when it ran with other settings.
    """
    if not (folder / STATE).is_file():
        return None
    state: dict[str, Any] = torch.load(folder / STATE, map_location=device, weights_only=True)
    now = dataclasses.asdict(settings)
    other = {k: v for k, v in state["settings"].items() if k not in _FREE and v != now.get(k)}
    if other:
        wanted = ", ".join(f"{k} {v!r} (now {now.get(k)!r})" for k, v in other.items())
        raise Refusal(
            f"a run with other settings was begun: {wanted}\n  in {folder / STATE}\n"
            "  give the same settings, or another folder"
        )
    return state

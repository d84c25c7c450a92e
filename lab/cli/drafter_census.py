"""What `dsv4-lab census` says about the folder of a block drafter."""

from __future__ import annotations

from pathlib import Path

from dsv4.checkpoint.config import read_json_object
from dsv4.drafters.quant import precision_named
from dsv4.drafters.weights import draft_census
from dsv4.speculation.switches import Switches
from lab.cli import text
from lab.cli.settings import current


def is_drafter(folder: Path) -> bool:
    """Whether a folder's configuration says that it is a block drafter."""
    config = folder / "config.json"
    if not folder.is_dir() or not config.is_file():
        return False
    names = read_json_object(config, "config-file").get("architectures") or ()
    return any("DFlash" in str(n) or "DSparkModel" in str(n) or "DSparkDraft" in str(n)
               for n in names)  # fmt: skip


def show_drafter(folder: Path) -> None:
    """Print the census of a drafter: every choice that costs acceptance when it is wrong."""
    switches = Switches.from_env()
    found = draft_census(folder)
    banner = found.banner(precision_named(switches.precision), "seed", switches)
    if current().json:
        text.emit_json(
            "census",
            path=str(folder),
            kind="drafter",
            family=found.config.family,
            tensors=found.n_tensors,
            ignored=list(found.ignored),
            markov_rank=found.markov_rank,
            confidence_width=found.confidence_width,
            banner=banner,
        )
        return
    text.say(text.table(("drafter", ""), list(banner.items())))
    text.say("\nheaders are valid")

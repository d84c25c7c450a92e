"""Models that exist only in device memory, written where a checkpoint folder is asked for.

`mint:flash,layout=0731,layers=43,experts=160,agree=0.8,seed=0`: a size of `dsv4-lab mint` and,
after commas, what else it can be told. Weights are made on the device from the seed, so that full
sizes run without files. `draft` also takes `mint:qwen3-0.6b,agree=1` as a target and, as a drafter
that fits the target at hand, `mint:dspark,block=7,agree=0.8`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4.checkpoint.mint import MintPlan, plan_mint
from dsv4.errors import Refusal

PREFIX = "mint:"
_SHARE = re.compile(r"[01]|0?\.\d+|1\.0*")


@dataclass(frozen=True, slots=True)
class MintedName:
    """What stands behind `mint:`, and the settings that were given."""

    name: str
    numbers: Mapping[str, int]
    layout: str | None = None
    share: float | None = None


def is_minted(where: Path | str) -> bool:
    """Whether it names a made model instead of a folder."""
    return str(where).startswith(PREFIX)


def minted_name(where: Path | str, numbers: tuple[str, ...], *, layout: bool) -> MintedName:
    """The name and settings of a made model: these numbers, a share and perhaps a layout.

    Errors: Refusal for a setting that there is not.
    """
    name, *settings = str(where).removeprefix(PREFIX).split(",")
    counts: dict[str, int] = {}
    named: str | None = None
    share: float | None = None
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "layout" and value and layout:
            named = value
        elif key in numbers and value.isdecimal():
            counts[key] = int(value)
        elif key == "agree" and _SHARE.fullmatch(value):
            share = float(value)
        else:
            takes = ["layout=NAME"] if layout else []
            takes += ["agree=SHARE", *(f"{n}=N" for n in numbers)]
            raise Refusal(
                f"{where}: {setting!r} says nothing about a minted model\n"
                f"  it takes {', '.join(takes)}\n"
                "  such as mint:flash,layers=2,experts=16"
            )
    return MintedName(name, counts, named, share)


def model_of(where: Path | str) -> Path | MintPlan:
    """The folder itself, or the plan that `mint:SIZE,...` names.

    Errors: Refusal for a setting that there is not, or a size that cannot be.
    """
    if not is_minted(where):
        return Path(where)
    found = minted_name(where, ("layers", "experts", "seed"), layout=True)
    return plan_mint(
        found.name,
        found.layout or "official",
        seed=found.numbers.get("seed", 0),
        layers=found.numbers.get("layers"),
        experts=found.numbers.get("experts"),
        agreeing=found.share,
    )

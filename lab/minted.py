"""Models that exist only in device memory, written where a checkpoint folder is asked for.

`mint:flash,layout=0731,layers=43,experts=160,agree=0.8,seed=0`: a size of `dsv4-lab mint` and,
after commas, what else it can be told. Weights are made on the device from the seed, so that full
sizes run without files.
"""

from __future__ import annotations

import re
from pathlib import Path

from dsv4.checkpoint.mint import MintPlan, plan_mint
from dsv4.errors import Refusal

PREFIX = "mint:"
_NUMBERS = ("layers", "experts", "seed")
_SHARE = re.compile(r"[01]|0?\.\d+|1\.0*")


def model_of(where: Path | str) -> Path | MintPlan:
    """The folder itself, or the plan that `mint:SIZE,...` names.

    Errors: Refusal for a setting that there is not, or a size that cannot be.
    """
    text = str(where)
    if not text.startswith(PREFIX):
        return Path(where)
    size, *settings = text.removeprefix(PREFIX).split(",")
    layout, agreeing = "official", None
    numbers: dict[str, int | None] = {**dict.fromkeys(_NUMBERS), "seed": 0}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "layout" and value:
            layout = value
        elif name in _NUMBERS and value.isdecimal():
            numbers[name] = int(value)
        elif name == "agree" and _SHARE.fullmatch(value):
            agreeing = float(value)
        else:
            raise Refusal(
                f"{text}: {setting!r} says nothing about a minted model\n"
                f"  it takes layout=NAME, agree=SHARE and {', '.join(f'{n}=N' for n in _NUMBERS)}\n"
                "  such as mint:flash,layers=2,experts=16"
            )
    return plan_mint(
        size,
        layout,
        seed=numbers["seed"] or 0,
        layers=numbers["layers"],
        experts=numbers["experts"],
        agreeing=agreeing,
    )

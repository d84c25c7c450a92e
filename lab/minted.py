"""Models that exist only in device memory, written where a checkpoint folder is asked for.

`mint:flash,layout=official,layers=43,experts=160,seed=0`: a size of `dsv4-lab mint` and, after
commas, what else it can be told. Weights are made on the device from the seed, so that full sizes
run without files.
"""

from __future__ import annotations

from pathlib import Path

from dsv4.checkpoint.mint import MintPlan, plan_mint
from dsv4.errors import Refusal

PREFIX = "mint:"
_NUMBERS = ("layers", "experts", "seed")


def model_of(where: Path | str) -> Path | MintPlan:
    """The folder itself, or the plan that `mint:SIZE,...` names.

    Errors: Refusal for a setting that there is not, or a size that cannot be.
    """
    text = str(where)
    if not text.startswith(PREFIX):
        return Path(where)
    size, *settings = text.removeprefix(PREFIX).split(",")
    layout, numbers = "official", dict.fromkeys(_NUMBERS, None) | {"seed": 0}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "layout" and value:
            layout = value
        elif name in _NUMBERS and value.isdecimal():
            numbers[name] = int(value)
        else:
            raise Refusal(
                f"{text}: {setting!r} says nothing about a minted model\n"
                f"  it takes layout=NAME and {', '.join(f'{n}=N' for n in _NUMBERS)}\n"
                "  such as mint:flash,layers=2,experts=16"
            )
    return plan_mint(
        size,
        layout,
        seed=numbers["seed"] or 0,
        layers=numbers["layers"],
        experts=numbers["experts"],
    )

"""The engine's switches as an option of commands."""

from __future__ import annotations

import click

from dsv4.errors import Refusal

ARMS = click.option(
    "--arm", "arms", multiple=True, metavar="NAME=VALUE",
    help="Set a switch of the engine, as DSV4_NAME would: --arm dots_arm=f64.",
)  # fmt: skip


def switches(arms: tuple[str, ...], *, option: str = "--arm") -> dict[str, str | None]:
    """The switches by name, as the engine takes them. Errors: Refusal for a word without =."""
    found: dict[str, str | None] = {}
    for arm in arms:
        name, equals, value = arm.partition("=")
        if not equals or not name or not value:
            raise Refusal(
                f"{option} {arm} was given\n  it is no NAME=VALUE\n  on the command line\n"
                f"  write it like {option} decode_path=legacy"
            )
        found[name.lower().removeprefix("dsv4_")] = value
    return found


DEVICES = click.option(
    "--devices", default="0", show_default=True, metavar="LIST",
    help="A device for each pipeline stage: 0,1. One that comes twice holds two stages. With"
    " --arm parallel=tensor a device for each rank.",
)  # fmt: skip


def device_list(devices: str) -> tuple[int, ...]:
    """The devices of stages. Errors: Refusal for what is no list of numbers."""
    parts = [part.strip() for part in devices.split(",")]
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise Refusal(
            f"--devices {devices} was given\n  it is no list of device numbers\n"
            "  on the command line\n  write it like --devices 0,1"
        )
    return tuple(int(p) for p in parts)

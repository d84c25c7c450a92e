"""Opens a target and a drafter for it: folders of any kind that is known here, or made models."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dsv4.checkpoint.config import read_json_object
from dsv4.checkpoint.made import MadeTensors
from dsv4.checkpoint.mint import MintPlan
from dsv4.drafters.backbone import BlockDrafter
from dsv4.drafters.making import BLOCKS, made_drafter
from dsv4.drafters.weights import draft_census, load_draft
from dsv4.runtime.device import Device
from dsv4.speculation.refusals import refuse
from dsv4.speculation.switches import Switches
from dsv4.targets.config import KNOWN
from dsv4.targets.dsv4 import open_v4
from dsv4.targets.layers import Ops
from dsv4.targets.load import load_target
from dsv4.targets.making import SIZES, made_target
from dsv4.targets.protocol import SpecTarget
from lab.minted import PREFIX, MintedName, is_minted, minted_name, model_of


class OpenTarget(SpecTarget, Protocol):
    """A target that also says what it is and where it runs."""

    @property
    def kind(self) -> str:
        """What its configuration calls it."""

    @property
    def eos(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    @property
    def ops(self) -> Ops:
        """Launches where its head lies."""


def open_target(
    where: Path | str, device: Device, positions: int, switches: Switches | None = None
) -> OpenTarget:
    """The target of a folder, or a made one, for runs of that many positions.

    Errors: Refusal naming what is broken, or a kind that is not known here.
    """
    on_host = switches is not None and switches.host_embedding
    if is_minted(where):
        if str(where).removeprefix(PREFIX).partition(",")[0] in SIZES:
            found = minted_name(where, ("layers", "seed"), layout=False)
            made = made_target(
                found.name,
                device,
                seed=found.numbers.get("seed", 0),
                layers=found.numbers.get("layers"),
                share=found.share,
            )
            return load_target(made, device, host_embedding=on_host)
        return _open_v4(model_of(where), device, positions, on_host)
    content = read_json_object(Path(where) / "config.json", "config-file")
    kind = content.get("text_config", content).get("model_type")
    if kind in KNOWN:
        return load_target(Path(where), device, host_embedding=on_host)
    if "DeepseekV4" in str(content.get("architectures")) or kind == "deepseek_v4":
        return _open_v4(Path(where), device, positions, on_host)
    raise refuse(
        "architecture",
        "a target's config.json",
        f"model_type {kind!r}",
        f"targets here are {', '.join(KNOWN)} and deepseek_v4",
    )


def _open_v4(model: Path | MintPlan, device: Device, positions: int, on_host: bool) -> OpenTarget:
    if on_host:
        raise refuse(
            "switch",
            "DSV4_SPEC_HOST_EMBD=1",
            "a V4 target",
            "unset it: the engine's steps look the embedding up on their first stage",
        )
    return open_v4(model, device, max_seq=positions)


def block_size(where: Path | str) -> int:
    """Rows of a drafter's block, from its headers or its name. Errors: Refusal."""
    if not is_minted(where):
        return draft_census(Path(where)).config.block_size
    found = _drafter_name(where)
    return found.numbers.get("block") or BLOCKS[found.name]


def open_drafter(
    where: Path | str,
    target: OpenTarget,
    *,
    precision: str = "",
    rule: str = "seed",
    switches: Switches | None = None,
) -> BlockDrafter:
    """The drafter of a folder, or a made one, where the target's head lies. Errors: Refusal."""
    device = target.ops.device
    source: Path | MadeTensors = Path(where)
    if is_minted(where):
        found = _drafter_name(where)
        source = made_drafter(
            found.name,
            target,
            device,
            seed=found.numbers.get("seed", 0),
            layers=found.numbers.get("layers"),
            block=found.numbers.get("block"),
            share=found.share,
        )
    return load_draft(
        source,
        device,
        precision=precision,
        rule=rule,
        switches=switches,
        target_vocab=target.vocab,
        target_layers=target.n_layers,
    )


def _drafter_name(where: Path | str) -> MintedName:
    found = minted_name(where, ("layers", "block", "seed"), layout=False)
    if found.name not in BLOCKS:
        raise refuse("value", "a made drafter", repr(found.name), f"there are {', '.join(BLOCKS)}")
    return found

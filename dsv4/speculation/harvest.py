"""Which rows of a drafted block propose, and about which position each speaks."""

from __future__ import annotations

import enum
from typing import Protocol

from dsv4.speculation.refusals import refuse
from dsv4.speculation.switches import Switches


class _Family(Protocol):
    @property
    def is_dflash2(self) -> bool:
        """Whether the drafter selects candidates."""

    @property
    def strategy_dspark(self) -> bool:
        """Whether the checkpoint was trained with shifted labels."""


class Harvest(enum.Enum):
    """DFLASH fills masks: row k speaks about anchor + k. DSPARK is shifted: about anchor + k + 1.

    The choice belongs to the checkpoint. A wrong one costs acceptance and nothing else, so no test
    of equality sees it.
    """

    DFLASH = "dflash"
    DSPARK = "dspark"

    @property
    def first_row(self) -> int:
        """The first row that proposes: a mask-filling anchor row was never trained."""
        return 1 if self is Harvest.DFLASH else 0

    def n_drafts(self, block_size: int) -> int:
        """How many drafts a block of that many rows gives."""
        return block_size - self.first_row

    def trained_offset_of_row(self, row: int) -> int:
        """How far behind the anchor the position lies that this row was trained for."""
        return row + 1 - self.first_row

    @classmethod
    def from_name(cls, name: str) -> Harvest | None:
        """The harvest of that name, or None."""
        return next((h for h in cls if h.value == name), None)

    @classmethod
    def from_env_value(cls, value: str) -> Harvest:
        """What the switch alone says; DFLASH when it is empty. Errors: DrafterRefusal."""
        if not value:
            return cls.DFLASH
        found = cls.from_name(value)
        if found is None:
            raise refuse(
                "harvest-unknown", "DSV4_DSPARK_HARVEST", repr(value), "name one, or unset it"
            )
        return found

    @classmethod
    def resolve_value(cls, value: str, strategy_dspark: bool) -> Harvest:
        """The switch where it is set, else what the checkpoint was trained for."""
        if value:
            return cls.from_env_value(value)
        return cls.DSPARK if strategy_dspark else cls.DFLASH

    @classmethod
    def resolve(cls, switches: Switches, strategy_dspark: bool) -> Harvest:
        """As `resolve_value`, of the switches."""
        return cls.resolve_value(switches.harvest, strategy_dspark)

    @classmethod
    def for_family_value(cls, is_dflash2: bool, value: str, strategy_dspark: bool) -> Harvest:
        """As `resolve_value`; a DFlash2 drafter always fills masks. Errors: DrafterRefusal."""
        if not is_dflash2:
            return cls.resolve_value(value, strategy_dspark)
        if cls.from_env_value(value) is cls.DSPARK:
            raise refuse(
                "harvest-dflash2", "DSV4_DSPARK_HARVEST", "dspark", "unset it for this drafter"
            )
        return cls.DFLASH

    @classmethod
    def for_draft(cls, config: _Family, switches: Switches) -> Harvest:
        """The harvest of a drafter's configuration."""
        return cls.for_family_value(config.is_dflash2, switches.harvest, config.strategy_dspark)

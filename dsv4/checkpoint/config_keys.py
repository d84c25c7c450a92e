"""Reads single configuration keys under both published spellings, refusing what is no value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsv4.checkpoint.rules import refuse
from dsv4.errors import Refusal

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Keys:
    """A configuration and where it was read.

    Every value has two spellings: that of the top-level config.json (dots for nested objects) and
    the flat one of the reference's inference config. Either is enough; two must agree.
    """

    content: Mapping[str, Any]
    where: object

    def find(self, published: str, flat: str) -> tuple[str, Any]:
        """The spelling that is used and its value, None when there is neither.

        Errors: Refusal when both are there and differ.
        """
        first = self._nested(published)
        second = self.content.get(flat, _ABSENT) if flat and flat != published else _ABSENT
        if first is not _ABSENT and second is not _ABSENT and first != second:
            raise refuse(
                "config-contradiction",
                f"{published} is {first!r}, {flat} is {second!r}",
                self.where,
                "keep the one that the checkpoint was made with",
            )
        if first is _ABSENT and second is not _ABSENT:
            return flat, second
        return published, None if first is _ABSENT else first

    def whole(
        self, published: str, flat: str = "", *, least: int = 1, default: int | None = None
    ) -> int:
        """A whole number. Errors: Refusal for another type, below `least`, or none."""
        key, value = self.find(published, flat)
        value = default if value is None else value
        if type(value) is not int or value < least:
            raise self.not_a(key, value, f"a whole number of at least {least}")
        return value

    def number(
        self, published: str, flat: str = "", *, zero: bool = False, default: float | None = None
    ) -> float:
        """A finite positive number, or zero where allowed. Errors: Refusal for anything else."""
        key, value = self.find(published, flat)
        value = default if value is None else value
        wanted = f"a finite number {'of zero or more' if zero else 'above zero'}"
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise self.not_a(key, value, wanted)
        real = float(value)  # type: ignore[arg-type]
        if real < 0 or (real == 0 and not zero):
            raise self.not_a(key, value, wanted)
        return real

    def wholes(
        self, published: str, flat: str = "", *, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """A list of whole numbers. Errors: Refusal for anything else."""
        key, value = self.find(published, flat)
        if value is None and default is not None:
            return default
        if not isinstance(value, list | tuple) or any(type(v) is not int for v in value):
            raise self.not_a(key, value, "a list of whole numbers")
        return tuple(value)

    def not_a(self, key: str, value: Any, wanted: str) -> Refusal:
        """The refusal of a value that is not what the key holds."""
        return refuse("config-value", f"{key} is {value!r}", self.where, f"give {key} {wanted}")

    def _nested(self, dotted: str) -> Any:
        value: Any = self.content
        for part in dotted.split("."):
            if value is None:
                return _ABSENT  # `rope_scaling: null` holds nothing
            if not isinstance(value, Mapping):
                raise self.not_a(dotted.partition(".")[0], value, "an object")
            value = value.get(part, _ABSENT)
            if value is _ABSENT:
                return _ABSENT
        return value

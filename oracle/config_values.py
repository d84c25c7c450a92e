"""How configuration values are demanded: one error, with the key, the value and the rule."""

import math
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A configuration that no model can have, or one that does not fit its checkpoint."""


def check(holds: bool, key: str, found: Any, rule: str) -> None:
    """Nothing, if the rule holds. Errors: ConfigError saying key, value and rule."""
    if not holds:
        raise ConfigError(
            f"config key {key} is {found!r}\n  it must be {rule}\n  correct config.json"
        )


def whole(
    source: Mapping[str, Any], key: str, *, least: int = 1, default: int | None = None
) -> int:
    """The whole number under a key. Errors: ConfigError for another type or below `least`."""
    found = source.get(key, default)
    check(type(found) is int and found >= least, key, found, f"a whole number of at least {least}")
    return int(found or 0)


def number(
    source: Mapping[str, Any], key: str, *, zero: bool = False, default: float | None = None
) -> float:
    """The positive number under a key. Errors: ConfigError for another type or sign."""
    found = source.get(key, default)
    good = type(found) in (int, float) and math.isfinite(found or 0.0)
    good = good and ((found or 0.0) > 0 or (zero and found == 0))
    check(good, key, found, "a finite number, zero or more" if zero else "a finite positive number")
    return float(found or 0.0)


def wholes(
    source: Mapping[str, Any], key: str, *, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """The whole numbers under a key. Errors: ConfigError for anything but a list of them."""
    found = source.get(key)
    if found is None and default is not None:
        return default
    check(isinstance(found, list | tuple), key, found, "a list of whole numbers")
    for entry in found or ():
        check(type(entry) is int, key, entry, "a list of whole numbers")
    return tuple(found or ())

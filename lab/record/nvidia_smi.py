"""What `nvidia-smi` says about each GPU, in one query that changes nothing."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

# Column, our name, whether it is the same tomorrow.
_COLUMNS = (
    ("name", "name", True),
    ("uuid", "uuid", True),
    ("driver_version", "driver", True),
    ("persistence_mode", "persistence", True),
    ("ecc.mode.current", "ecc", True),
    ("mig.mode.current", "mig", True),
    ("power.limit", "power_limit_w", True),
    ("clocks.max.sm", "sm_max_mhz", True),
    ("clocks.max.mem", "memory_max_mhz", True),
    ("clocks.sm", "sm_mhz", False),
    ("clocks.mem", "memory_mhz", False),
    ("power.draw", "power_w", False),
    ("temperature.gpu", "temperature_c", False),
    ("clocks_throttle_reasons.active", "throttle_reasons", False),
)
_TIMEOUT_S = 5.0

Facts = dict[str, Any]


def gpu_settings_and_state() -> tuple[list[Facts] | None, list[Facts] | None]:
    """Per GPU, what lasts and what changes; (None, None) where nvidia-smi does not answer."""
    text = _query([column for column, _, _ in _COLUMNS])
    if text is None:
        return None, None
    rows = [_row(line) for line in csv.reader(text.splitlines(), skipinitialspace=True) if line]
    lasting = {name for _, name, lasts in _COLUMNS if lasts}
    settings = [{k: v for k, v in row.items() if k in lasting} for row in rows]
    return settings, [{k: v for k, v in row.items() if k not in lasting} for row in rows]


def sm_clock_mhz(bus_id: str) -> float | None:
    """The SM clock of the card at that PCI address now; None where nvidia-smi does not answer."""
    text = _query(("clocks.sm",), f"--id={bus_id}")
    value = _value(text.strip()) if text else None
    return value if isinstance(value, float) else None


def _query(columns: Sequence[str], *more: str) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits", *more]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _row(cells: list[str]) -> Facts:
    return {name: _value(cell) for (_, name, _), cell in zip(_COLUMNS, cells, strict=False)}


def _value(cell: str) -> str | float | None:
    """A number where it is one; None for what the card does not have."""
    if cell.startswith("[") or cell == "N/A":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell

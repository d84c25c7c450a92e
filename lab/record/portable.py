"""The committed digests of portable kernels: the same bytes on every backend.

A kernel declared portable uses only + - * / sqrt fma and integers, so its output bytes on the host
are its output bytes on a GPU. `tests/golden/portable.jsonl` holds one line per kernel and quick
case; `python -m lab.record.portable --write` makes it from host runs, and the tests compare both
backends with it. A changed line is a numerics change and belongs in the changelog.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsv4 import registry
from dsv4.errors import SpecError
from dsv4.runtime.device import Device, open_device
from dsv4.spec import KernelSpec
from lab.cases import Case, cases
from lab.run import RunOptions, run_case

PATH = Path(__file__).resolve().parents[2] / "tests" / "golden" / "portable.jsonl"


def portable_cases() -> Iterator[tuple[KernelSpec, Case]]:
    """Every quick case of every portable kernel."""
    for kernel in registry.kernels().values():
        if kernel.spec.portable:
            yield from ((kernel.spec, c) for c in cases(kernel.spec.name) if c.level == "quick")


def row_of(spec: KernelSpec, case: Case, device: Device) -> dict[str, Any]:
    """The digests of one case on that device."""
    result = run_case(spec, case, device, RunOptions(time=False, relaunch=1, poison=False))
    return {
        "kernel": spec.name,
        "case": case.name,
        "axes": dict(case.axes),
        "seed": result.seed,
        "input_digest": result.input_digest,
        "output_digest": result.output_digest,
    }


def rows() -> list[Mapping[str, Any]]:
    """The committed lines. Errors: SpecError when the file is missing or damaged."""
    try:
        return [json.loads(line) for line in PATH.read_text().splitlines() if line]
    except (OSError, ValueError) as error:
        raise SpecError(
            f"the committed digests cannot be read from {PATH} ({error})\n"
            "  they are part of a checkout; write them with: python -m lab.record.portable --write"
        ) from None


def main() -> None:
    """Write the file, or list kernels whose digests differ from it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="replace the committed file")
    parser.add_argument("--backend", default="host", choices=["host", "cuda"])
    arguments = parser.parse_args()
    device = open_device(arguments.backend)
    found = [row_of(spec, case, device) for spec, case in portable_cases()]
    if arguments.write:
        PATH.parent.mkdir(parents=True, exist_ok=True)
        PATH.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in found))
        print(f"{len(found)} digests written to {PATH}")
        return
    known = {json.dumps(r, sort_keys=True) for r in rows()}
    different = [r for r in found if json.dumps(r, sort_keys=True) not in known]
    for row in different:
        print(f"{row['kernel']} {row['case']} {row['axes']}: differs from the committed digest")
    print(f"{len(found)} digests on {device.name}, {len(different)} different")
    raise SystemExit(5 if different else 0)


if __name__ == "__main__":
    main()

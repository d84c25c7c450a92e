"""A saved case: the exact input bits of one run, so that a failure can be replayed anywhere."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.errors import SpecError
from dsv4.spec import KernelSpec
from lab.cases import Case, inputs_of
from lab.result import CaseResult

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SavedCase:
    """What a case file holds: the kernel, its case with literal inputs, and how it was found."""

    kernel: str
    case: Case
    seed: int
    found: dict[str, Any]


def save_case(folder: Path, spec: KernelSpec, case: Case, result: CaseResult) -> Path:
    """Write the case with its input bits and return the file's path."""
    inputs = inputs_of(spec, case, result.seed)
    values = {k: v for k, v in case.values.items() if k not in inputs}
    meta = {
        "schema": _SCHEMA,
        "kernel": spec.name,
        "case": case.name,
        "axes": dict(case.axes),
        "values": values,
        "pad": dict(case.pad),
        "seed": result.seed,
        "found": {
            "verdict": result.verdict,
            "backend": result.backend,
            "mode": result.mode,
            "arch": result.arch,
            "reasons": list(result.reasons),
            "error": result.error,
            "output_digest": result.output_digest,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{spec.name}-{(result.input_digest or 'unrun')[:8]}.case"
    with path.open("wb") as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **inputs)  # type: ignore[arg-type]
    return path


def load_case(path: Path) -> SavedCase:
    """Read a case file. Errors: SpecError when it is missing, damaged or from a newer version."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            meta = json.loads(str(archive["meta"]))
            inputs = {name: archive[name] for name in archive.files if name != "meta"}
        if meta["schema"] > _SCHEMA:
            raise SpecError(
                f"{path} has schema {meta['schema']}, this version reads up to {_SCHEMA};"
                " update dsv4-lab"
            )
        axes, values, pad = dict(meta["axes"]), dict(meta["values"]), dict(meta["pad"])
        case = Case(meta["case"], check=True, pad=pad, **axes, **values, **inputs)
        return SavedCase(meta["kernel"], case, int(meta["seed"]), dict(meta["found"]))
    except FileNotFoundError:
        raise SpecError(f"no case file {path}; kernel-diff writes them to .lab/failing/") from None
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise SpecError(
            f"{path} is not a readable case file ({error}); run kernel-diff again to write it anew"
        ) from None

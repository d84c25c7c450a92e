"""Everything about one kernel, as data: what `dsv4-lab show` prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsv4.axes import Shape
from dsv4.errors import DeviceError, SpecError
from dsv4.runtime.launch import geometry_of
from dsv4.spec import GLOSSARY, Arg, KernelSpec
from lab.builds import build, constants_for, source_of
from lab.cases import Case, cases, scalars_of
from lab.cases.select import require_known, select
from lab.compare.judge import label
from lab.record.store import Store

_ROOT = Path(__file__).resolve().parents[1]
_HISTORY = 8


def five_files(family: str) -> dict[str, str]:
    """The file that answers each of the five questions, from the root of the checkout."""
    return {
        "how does it work?": f"cuda/{family}.cu",
        "what is the right answer?": f"oracle/{family}.py",
        "how is it called, what does it promise?": f"dsv4/kernels/{family}.py",
        "what is it tried on?": f"lab/cases/{family}.py",
        "what must stay true?": f"tests/test_{family}.py",
    }


def missing_files(family: str, root: Path = _ROOT) -> list[str]:
    """Those of the five that are not there; none where there is no checkout to look at."""
    if not (root / "cuda").is_dir():
        return []
    return [path for path in five_files(family).values() if not (root / path).is_file()]


def choose_case(spec: KernelSpec, name: str | None) -> Case:
    """The case of that name, or the first. Errors: SpecError with near matches."""
    known = cases(spec.name)
    if name is None:
        return known[0]
    require_known([(spec, known)], names=[name])
    return select(known, names=[name], level="stress", spec=spec)[0]


def describe(spec: KernelSpec, case: Case, store_path: Path, arch: str) -> dict[str, Any]:
    """The page of a kernel, ready for JSON: declaration, one case, its build, its history."""
    values = {**case.axes, **scalars_of(spec, case)}
    shape = Shape(values)
    geometry = geometry_of(spec, shape)
    work = spec.work(shape)
    return {
        "kernel": spec.name,
        "family": spec.family,
        "summary": spec.summary,
        "declared_at": spec.declared_at,
        "files": five_files(spec.family),
        "missing": missing_files(spec.family),
        "signature": signature(spec),
        "args": [_argument(a) for a in spec.args],
        "axes": {k: GLOSSARY[k] for k in case.axes if k in GLOSSARY},
        "options": {o.name: list(o.choices) for o in spec.options},
        "requires": [asdict(r) for r in spec.requires],
        "contract": {
            name: {"contract": label(c), "because": c.because} for name, c in spec.contract.items()
        },
        "repeatable": spec.repeatable,
        "batch_invariant": spec.batch_invariant or None,
        "portable": spec.portable,
        "cases": [{"case": c.name, "level": c.level, "axes": c.axes} for c in cases(spec.name)],
        "case": {
            "case": case.name,
            "values": values,
            "grid": geometry.grid,
            "block": geometry.block,
            "shared_bytes": geometry.shared_bytes,
            "constants": constants_for(spec, case),
            "bytes": work.size_bytes,
            "flops": work.flops,
        },
        "build": _build(spec, case, arch),
        "history": _history(spec, store_path),
    }


def signature(spec: KernelSpec) -> str:
    """The symbol's parameters, one a line, as C sees them and with their axes."""
    width = max(len(_c_type(a)) for a in spec.args)
    lines = []
    for arg in spec.args:
        axes = f" [{', '.join(arg.axes)}]" if arg.is_array else ""
        notes = [arg.fmt.name] if arg.is_array else [arg.role]
        notes += ["any row stride"] * arg.strided + [f"of {arg.of}"] * bool(arg.of)
        if arg.is_array and arg.align > arg.fmt.size_bytes:
            notes.append(f"aligned to {arg.align}")
        lines.append(f"{_c_type(arg):<{width}} {arg.name}{axes}  // {', '.join(notes)}")
    return f"{spec.symbol}(\n" + "".join(f"  {line}\n" for line in lines) + ")"


def _c_type(arg: Arg) -> str:
    kinds = {"f8": "double", "f4": "float", "u2": "u16", "u1": "u8", "i4": "i32", "i8": "i64"}
    name = kinds.get(arg.fmt.code, arg.fmt.code)
    if not arg.is_array:
        return name
    return f"const {name}*" if arg.role == "in" else f"{name}*"


def _argument(arg: Arg) -> dict[str, Any]:
    return {
        "role": arg.role,
        "name": arg.name,
        "format": arg.fmt.name,
        "axes": list(arg.axes),
        "strided": arg.strided,
        "align": arg.align,
    }


def _build(spec: KernelSpec, case: Case, arch: str) -> dict[str, Any] | None:
    """What the case's build uses; None where NVRTC is missing."""
    try:
        return build(spec, constants_for(spec, case), arch).to_json()
    except DeviceError:
        return None


def _history(spec: KernelSpec, store_path: Path) -> list[dict[str, Any]]:
    """The newest runs that had the kernel, oldest first."""
    store = Store.open_existing(store_path)
    if store is None:
        return []
    with store:
        return store.history(spec.name, _HISTORY)


def one_spec(pattern: str) -> KernelSpec:
    """The one kernel a pattern names. Errors: SpecError when it names several."""
    from dsv4 import registry

    found = registry.match([pattern])
    exact = [s for s in found if s.name == pattern]
    if len(exact or found) > 1:
        names = ", ".join(s.name for s in found)
        raise SpecError(f"{pattern!r} names {len(found)} kernels: {names}\n  choose one of them")
    return (exact or found)[0]


def source_text(spec: KernelSpec) -> str:
    """The whole `.cu`."""
    return source_of(spec).read_text(encoding="utf-8")

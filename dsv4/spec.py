"""How a kernel is declared: arguments, geometry, promise and cost, as plain data.

One `kernel(...)` call in `dsv4/kernels/<family>.py` is the only place where a kernel is described.
The launcher, the workbench, pytest, benchmarks and the README table read it. Nothing here imports
CuPy, so listing kernels stays instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsv4.axes import Shape
from dsv4.errors import SpecError

# Single capitals with one meaning in code, docstrings, case filters and reports.
GLOSSARY: Final[Mapping[str, str]] = {
    "T": "tokens (rows of activations)",
    "D": "hidden width, or width of an indexer head",
    "H": "heads",
    "K": "reduction width of a product, or head width",
    "N": "rows of a weight, or cached rows",
    "M": "residual streams, or rows verified together",
    "R": "rotary width",
    "E": "experts",
    "A": "active experts, or rows picked by id",
    "B": "blocks: of compressed rows, or chunks of a list",
    "S": "selected keys, or source rows",
    "C": "compression ratio, or columns of a window",
    "G": "groups: key heads of grouped attention, or channels that share a coefficient",
    "V": "vocabulary",
    "P": "positions in a table",
    "Q": "width of the queries' latent",
    "I": "width of the indexer's keys",
    "L": "channels of a compressor's raw rows",
    "W": "letters of mailboxes",
}


@dataclass(frozen=True, slots=True)
class Format:
    """A number format as arrays store it; `oracle.formats` knows its values by the same name."""

    name: str
    storage: str  # NumPy dtype of one stored element
    code: str  # what the host backend's signature calls it
    is_float: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of one stored element."""
        return int(self.code[1:])


F64 = Format("f64", "float64", "f8", True)
F32 = Format("f32", "float32", "f4", True)
F16 = Format("f16", "uint16", "u2", True)
BF16 = Format("bf16", "uint16", "u2", True)
E4M3 = Format("e4m3", "uint8", "u1", False)
UE8M0 = Format("ue8m0", "uint8", "u1", False)
E2M1X2 = Format("e2m1x2", "uint8", "u1", False)
U8 = Format("u8", "uint8", "u1", False)
I32 = Format("i32", "int32", "i4", False)
I64 = Format("i64", "int64", "i8", False)
FORMATS: Final[Mapping[str, Format]] = {
    f.name: f for f in (F64, F32, F16, BF16, E4M3, UE8M0, E2M1X2, U8, I32, I64)
}


@dataclass(frozen=True, slots=True)
class Arg:
    """One parameter of the `.cu` symbol, in its place.

    role: "in", "out" and "inout" are arrays; "dim" passes an axis, "stride" the row stride of an
    array in elements, "scalar" a value given by keyword.
    axes: space-separated axis expressions (`dsv4.axes`), for arrays.
    strided: the first axis may have any stride (a slice of a wider array); the rest is contiguous.
    align: bytes that the first element's address (and a free row stride) must be a multiple of.
    """

    role: str
    name: str
    fmt: Format
    axes: tuple[str, ...] = ()
    strided: bool = False
    align: int = 1
    of: str = ""

    @property
    def is_array(self) -> bool:
        """Whether an array is passed."""
        return self.role in ("in", "out", "inout")

    @property
    def signature(self) -> str:
        """The host backend's signature code, such as "Pf4" (const pointer) or "i4"."""
        if not self.is_array:
            return self.fmt.code
        return ("P" if self.role == "in" else "p") + self.fmt.code


def _array(role: str, name: str, fmt: Format, axes: str, strided: bool, align: int | None) -> Arg:
    return Arg(role, name, fmt, tuple(axes.split()), strided, align or fmt.size_bytes)


def In(
    name: str, fmt: Format, axes: str, *, strided: bool = False, align: int | None = None
) -> Arg:
    """An array the kernel only reads."""
    return _array("in", name, fmt, axes, strided, align)


def Out(
    name: str, fmt: Format, axes: str, *, strided: bool = False, align: int | None = None
) -> Arg:
    """An array the kernel writes in full without reading it."""
    return _array("out", name, fmt, axes, strided, align)


def InOut(
    name: str, fmt: Format, axes: str, *, strided: bool = False, align: int | None = None
) -> Arg:
    """An array the kernel updates in place."""
    return _array("inout", name, fmt, axes, strided, align)


def Dim(axis: str, fmt: Format = I32) -> Arg:
    """The size of an axis, passed by value."""
    return Arg("dim", axis, fmt)


def Stride(name: str, *, of: str) -> Arg:
    """The stride of the first axis of array `of`, in elements, as int64."""
    return Arg("stride", name, I64, of=of)


def Scalar(name: str, fmt: Format) -> Arg:
    """A value given by keyword at the call."""
    return Arg("scalar", name, fmt)


@dataclass(frozen=True, slots=True)
class Option:
    """A build constant chosen at the call by keyword; one module is built per value."""

    name: str
    choices: tuple[int, ...]

    @property
    def default(self) -> int:
        """The first choice."""
        return self.choices[0]


def _triple(value: int | Sequence[int]) -> tuple[int, int, int]:
    parts = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)


@dataclass(frozen=True, slots=True, init=False)
class Geometry:
    """Grid and block of a launch (x, y, z) and its dynamic shared memory in bytes.

    dependent: it may begin before the launch in front of it has ended.
    cluster: blocks, neighbours along x, that run together and reach each other's shared memory; the
    source says the same number (common/cluster.cuh).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    dependent: bool
    cluster: int

    def __init__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        dependent: bool = False,
        cluster: int = 1,
    ) -> None:
        """Fill missing dimensions with 1."""
        object.__setattr__(self, "grid", _triple(grid))
        object.__setattr__(self, "block", _triple(block))
        object.__setattr__(self, "shared_bytes", int(shared_bytes))
        object.__setattr__(self, "dependent", dependent)
        object.__setattr__(self, "cluster", int(cluster))


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of an output that one block owns: (axis, elements) along each grid dimension.

    Axes not named are owned whole. per_thread: neighbouring elements of the x tile one thread
    writes; 0 when threads share an element.
    """

    x: tuple[str, int] | None = None
    y: tuple[str, int] | None = None
    z: tuple[str, int] | None = None
    per_thread: int = 0


@dataclass(frozen=True, slots=True)
class Exact:
    """The bytes equal the oracle's value, encoded by the rounding the model prescribes."""

    because: str


@dataclass(frozen=True, slots=True)
class Ulp:
    """Each element is within n spacings of the float64 value, as a real number."""

    n: float
    because: str


@dataclass(frozen=True, slots=True)
class Within:
    """Each element is inside a bound computed from lengths, formats and the magnitude companion.

    kind: which formula of `lab.compare.contract`.
    depth: axis expression, the longest chain of roundings that any term passes through.
    terms: axis expression, how many products are summed ("" means depth). A tree has few roundings
    in a chain but one underflow per product, and the oracle's own sum is bounded by it too.
    accumulator: the format those roundings happen in.
    """

    kind: str
    because: str
    depth: str = "1"
    accumulator: Format = F32
    terms: str = ""


Contract = Exact | Ulp | Within


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that must move and operations that must be done, for one launch."""

    read: int
    write: int
    flops: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read + self.write


@dataclass(frozen=True, slots=True)
class Require:
    """A condition on axes, options and scalars, refused before launch with its reason."""

    condition: str
    because: str


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Everything the project knows about one kernel.

    portable: only + - * / sqrt fma and integers, so both backends give the same bytes.
    batch_invariant: the axis along which rows do not influence each other's bytes, or "".
    constants: names and values for the compiler, from the bound shape.
    spills: bytes of spilled registers a build may have; more fails `compile`.
    reads_early: inputs that a launch may read before the one in front of it has ended, as weights
    that nothing in a step writes; the source keeps the rules of common/overlap.cuh. None: no launch
    begins so early.
    passes_on: whether it calls let_next_start behind its own wait_for_previous. Then the launch
    behind it may read at once what launches in front of it wrote: its reads_passed, unless this one
    writes them.
    starts_early: whether a dependent launch does. It wins where a multiprocessor has no room for
    two blocks of a kernel that streams weights, as by registers: each then begins where one of the
    launch before ends. Where two can share one, some multiprocessors get two and others none.
    """

    name: str
    family: str
    summary: str
    args: tuple[Arg, ...]
    geometry: Callable[[Shape], Geometry]
    contract: Mapping[str, Contract]
    work: Callable[[Shape], Work]
    constants: Callable[[Shape], Mapping[str, int]]
    options: tuple[Option, ...] = ()
    requires: tuple[Require, ...] = ()
    writes: Mapping[str, Tile] = field(default_factory=dict)
    repeatable: bool = True
    batch_invariant: str = ""
    portable: bool = True
    oracle: str = ""
    min_arch: int = 80
    spills: int = 0
    reads_early: tuple[str, ...] | None = None
    reads_passed: tuple[str, ...] = ()
    passes_on: bool = False
    starts_early: bool = False
    declared_at: str = ""

    @property
    def symbol(self) -> str:
        """The `extern "C"` name in the source."""
        return self.name

    @property
    def arrays(self) -> tuple[Arg, ...]:
        """The array arguments in order."""
        return tuple(a for a in self.args if a.is_array)

    @property
    def inputs(self) -> tuple[Arg, ...]:
        """Arrays with content before the launch: in and inout, in order."""
        return tuple(a for a in self.args if a.role in ("in", "inout"))

    @property
    def outputs(self) -> tuple[Arg, ...]:
        """Arrays judged after the launch: out and inout, in order."""
        return tuple(a for a in self.args if a.role in ("out", "inout"))

    @property
    def scalars(self) -> tuple[Arg, ...]:
        """Values given by keyword."""
        return tuple(a for a in self.args if a.role == "scalar")

    def arg(self, name: str) -> Arg:
        """The argument of that name."""
        for candidate in self.args:
            if candidate.name == name:
                return candidate
        known = ", ".join(a.name for a in self.args)
        raise SpecError(f"{self.name}: no argument {name!r}; it has {known}")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A declared kernel, callable on arrays of either backend.

    `k(x, w, out=y, eps=1e-6)`: inputs by position in declared order, outputs by keyword (`out=`
    when there is one), scalars and options by keyword. It allocates nothing and never
    synchronises on CUDA; see `dsv4.runtime.launch`.
    """

    spec: KernelSpec

    def __call__(self, *inputs: Any, **named: Any) -> None:
        """Check every argument and launch. Errors: LaunchError, CompileError."""
        from dsv4.runtime.launch import prepare

        prepare(self.spec, *inputs, **named).run()

    def prepare(self, *inputs: Any, **named: Any) -> Any:
        """A checked launch that can be run many times without being checked again."""
        from dsv4.runtime.launch import prepare

        return prepare(self.spec, *inputs, **named)


def kernel(
    *,
    name: str,
    family: str,
    summary: str,
    args: Sequence[Arg],
    geometry: Callable[[Shape], Geometry],
    contract: Mapping[str, Contract],
    work: Callable[[Shape], Work],
    constants: Callable[[Shape], Mapping[str, int]] = lambda s: {},
    **more: Any,
) -> Kernel:
    """Declare a kernel. Errors: SpecError when the declaration contradicts itself.

    Its place is the line of the module that declares it, through functions that fill in what
    several kernels share.
    """
    import sys

    frame = sys._getframe(1)
    # A family's factory calls from the same file; the line that counts is its caller's.
    while frame.f_back is not None and (
        frame.f_back.f_code.co_filename == frame.f_code.co_filename
    ):
        frame = frame.f_back
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    spec = KernelSpec(
        name=name,
        family=family,
        summary=summary,
        args=tuple(args),
        geometry=geometry,
        contract=dict(contract),
        work=work,
        constants=constants,
        declared_at=f"dsv4/kernels/{where}",
        **more,
    )
    _check(spec)
    return Kernel(spec)


def _check(spec: KernelSpec) -> None:
    names = [a.name for a in spec.args]
    outputs = {a.name for a in spec.outputs}
    if len(set(names)) != len(names):
        raise SpecError(f"{spec.name}: an argument name is declared twice: {names}")
    if set(spec.contract) != outputs:
        raise SpecError(
            f"{spec.name}: outputs {sorted(outputs)} but contracts for {sorted(spec.contract)}\n"
            f"  declared in {spec.declared_at}\n  give every output exactly one contract"
        )
    if spec.starts_early and spec.reads_early is None:
        raise SpecError(
            f"{spec.name}: starts_early without reads_early\n"
            f"  declared in {spec.declared_at}\n  say which inputs it reads before it waits, or ()"
        )
    early = set(spec.reads_early or ()) - {a.name for a in spec.args if a.role == "in"}
    if early:
        raise SpecError(
            f"{spec.name}: {', '.join(sorted(early))} would be read early but is no input\n"
            f"  declared in {spec.declared_at}\n  name inputs of the kernel"
        )
    for arg in spec.args:
        if arg.role == "stride" and arg.of not in names:
            raise SpecError(f"{spec.name}: stride {arg.name} is of unknown array {arg.of!r}")
    if not spec.name.startswith(spec.family.split("_")[0]):
        raise SpecError(f"{spec.name}: names start with their family, {spec.family}")

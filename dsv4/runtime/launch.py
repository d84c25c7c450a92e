"""Checks a call against its declaration and binds it to a device.

Everything a raw launch would silently get wrong is refused here, before the device sees it: storage
type, rank, sizes that contradict each other, strides, alignment, missing scalars, grid limits.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsv4.axes import Shape, evaluate, is_name
from dsv4.errors import LaunchError, SpecError
from dsv4.runtime.device import Device, device_of
from dsv4.spec import Arg, Geometry, KernelSpec

_GRID_LIMIT = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Launch:
    """A checked launch: `run()` sends it to the device and returns without waiting on CUDA."""

    spec: KernelSpec
    shape: Shape
    geometry: Geometry
    constants: Mapping[str, int]
    arrays: Mapping[str, Any]
    run: Callable[[], None]


def prepare(
    spec: KernelSpec,
    *inputs: Any,
    device: Device | None = None,
    dependent: bool = False,
    **named: Any,
) -> Launch:
    """Bind arrays and scalars to the kernel. Errors: LaunchError naming the argument.

    dependent: it may begin before the launch in front of it has ended, where that wins.
    """
    arrays = _arrays_by_name(spec, inputs, named)
    device = device or device_of(next(iter(arrays.values())))
    for name, array in arrays.items():
        _check_type(spec, name, array, device)
    shape = bind_shape(spec, {n: tuple(a.shape) for n, a in arrays.items()}, named)
    for arg in spec.arrays:
        _check_array(spec, arg, arrays[arg.name], device)
    geometry = geometry_of(spec, shape)
    if dependent and spec.starts_early:
        geometry = replace(geometry, dependent=True)
    constants = dict(spec.constants(shape))
    values = [_value(spec, a, arrays, shape) for a in spec.args]
    run = device.bind(spec, constants, geometry, values)
    return Launch(spec, shape, geometry, constants, arrays, run)


def geometry_of(spec: KernelSpec, shape: Shape) -> Geometry:
    """Grid and block for a shape. Errors: LaunchError beyond a hardware limit or on no work."""
    geometry = spec.geometry(shape)
    for axis, size, limit in zip("xyz", geometry.grid, _GRID_LIMIT, strict=True):
        if not 1 <= size <= limit:
            raise _refuse(
                spec,
                f"grid {axis} is {size} for {shape!r}",
                f"a grid's {axis} goes from 1 to {limit}",
                "split the call into chunks along the rows",
            )
    return geometry


def bind_shape(
    spec: KernelSpec, shapes: Mapping[str, tuple[int, ...]], named: Mapping[str, Any]
) -> Shape:
    """Axis sizes from array shapes, with options and scalars added.

    Errors: LaunchError when two arrays disagree, a required condition fails, or a scalar or option
    is missing or unknown.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for arg in spec.arrays:
        shape = shapes[arg.name]
        if len(shape) != len(arg.axes):
            raise _refuse(
                spec,
                f"argument {arg.name} has shape {list(shape)}",
                f"it is declared [{', '.join(arg.axes)}]",
                f"pass an array of rank {len(arg.axes)}",
            )
        for position, (axis, size) in enumerate(zip(arg.axes, shape, strict=True)):
            if not is_name(axis):
                continue
            if values.setdefault(axis, size) != size:
                raise _refuse(
                    spec,
                    f"argument {arg.name} has {size} along axis {axis} (position {position}),"
                    f" {origin[axis]} has {values[axis]}",
                    f"axis {axis} must agree",
                    f"pass {arg.name} with {values[axis]} there",
                )
            origin.setdefault(axis, arg.name)
    values.update(_options_and_scalars(spec, named))
    for arg in spec.arrays:
        expected = tuple(int(evaluate(a, values)) for a in arg.axes)
        if expected != tuple(shapes[arg.name]):
            raise _refuse(
                spec,
                f"argument {arg.name} has shape {list(shapes[arg.name])}",
                f"[{', '.join(arg.axes)}] is {list(expected)} for {Shape(values)!r}",
                f"pass an array of shape {list(expected)}",
            )
    for requirement in spec.requires:
        if not evaluate(requirement.condition, values):
            raise _refuse(
                spec,
                f"{requirement.condition} does not hold for {Shape(values)!r}",
                requirement.because,
                "choose sizes that satisfy it",
            )
    return Shape(values)


def _options_and_scalars(spec: KernelSpec, named: Mapping[str, Any]) -> dict[str, Any]:
    left = {k: v for k, v in named.items() if k != "out" and k not in {a.name for a in spec.arrays}}
    values: dict[str, Any] = {}
    for option in spec.options:
        value = left.pop(option.name, option.default)
        if value not in option.choices:
            raise _refuse(
                spec,
                f"option {option.name} is {value}",
                f"it can be {', '.join(map(str, option.choices))}",
                "choose one of these",
            )
        values[option.name] = int(value)
    for arg in spec.scalars:
        if arg.name not in left:
            raise _refuse(
                spec,
                f"scalar {arg.name} is missing",
                f"it is declared as {arg.fmt.name}",
                f"pass {arg.name}=... by keyword",
            )
        value = left.pop(arg.name)
        values[arg.name] = float(value) if arg.fmt.is_float else int(value)
    if left:
        raise _refuse(
            spec,
            f"unknown keyword {', '.join(sorted(left))}",
            "keywords are outputs, scalars and options of the declaration",
            f"see: dsv4-lab show {spec.name}",
        )
    return values


def _arrays_by_name(
    spec: KernelSpec, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    positional = [a.name for a in spec.inputs]
    if len(inputs) > len(positional):
        raise _refuse(
            spec,
            f"{len(inputs)} arrays passed by position",
            f"it takes {len(positional)}: {', '.join(positional)}",
            "pass outputs by keyword",
        )
    arrays = dict(zip(positional, inputs, strict=False))
    pure = [a.name for a in spec.arrays if a.role == "out"]
    if "out" in named and len(pure) == 1:
        arrays[pure[0]] = named["out"]
    arrays.update({n: named[n] for n in (a.name for a in spec.arrays) if n in named})
    missing = [a.name for a in spec.arrays if a.name not in arrays]
    if missing:
        raise _refuse(
            spec,
            f"array {', '.join(missing)} not passed",
            f"it takes {', '.join(a.name for a in spec.arrays)}",
            "pass inputs by position and outputs by keyword",
        )
    return {a.name: arrays[a.name] for a in spec.arrays}


def _check_type(spec: KernelSpec, name: str, array: Any, device: Device) -> None:
    if not isinstance(array, device.xp.ndarray):
        raise _refuse(
            spec,
            f"argument {name} is a {type(array).__module__}.{type(array).__name__}",
            f"the call runs on {device.name}, which takes {device.xp.__name__}.ndarray",
            "move every array to one device first",
        )


def _check_array(spec: KernelSpec, arg: Arg, array: Any, device: Device) -> None:
    if array.dtype != np.dtype(arg.fmt.storage):
        raise _refuse(
            spec,
            f"argument {arg.name} has dtype {array.dtype}",
            f"{arg.fmt.name} is stored as {arg.fmt.storage}",
            f"convert or view it as {arg.fmt.storage}",
        )
    if array.size == 0:
        raise _refuse(
            spec,
            f"argument {arg.name} is empty (shape {list(array.shape)})",
            "a launch needs at least one element",
            "skip the call instead",
        )
    _check_strides(spec, arg, array)
    address = device.address(array)
    if address % arg.align:
        raise _refuse(
            spec,
            f"argument {arg.name} starts at an address that is {address % arg.align} over a"
            f" multiple of {arg.align} bytes",
            "the kernel loads vectors of that size",
            "pass an array that starts on that boundary",
        )


def _check_strides(spec: KernelSpec, arg: Arg, array: Any) -> None:
    inner = array[0] if arg.strided and array.ndim > 1 else array
    if not inner.flags.c_contiguous:
        raise _refuse(
            spec,
            f"argument {arg.name} has strides {array.strides} bytes for shape {list(array.shape)}",
            "the kernel walks contiguous rows" + (" at a free row stride" if arg.strided else ""),
            "pass a C-contiguous copy",
        )
    if arg.strided and array.ndim > 1:
        row = array.strides[0]
        if row < inner.nbytes and array.shape[0] > 1 and arg.role != "in":
            raise _refuse(
                spec,
                f"argument {arg.name} has rows {row} bytes apart that are {inner.nbytes} long",
                "rows that are written must not overlap",
                "pass rows that lie apart",
            )
        if row % arg.align:
            raise _refuse(
                spec,
                f"argument {arg.name} has rows {row} bytes apart",
                f"every row must start on a multiple of {arg.align} bytes",
                "pad the row stride",
            )


def _value(spec: KernelSpec, arg: Arg, arrays: Mapping[str, Any], shape: Shape) -> Any:
    if arg.is_array:
        return arrays[arg.name]
    if arg.role == "stride":
        array = arrays[arg.of]
        return np.int64(array.strides[0] // array.itemsize)
    value = shape[arg.name]
    dtype = np.dtype(arg.fmt.storage)
    if not arg.fmt.is_float:
        info = np.iinfo(dtype)
        if not info.min <= value <= info.max:
            raise _refuse(
                spec,
                f"{arg.name} is {value}",
                f"it is passed as {arg.fmt.name}",
                "use a smaller size",
            )
    return dtype.type(value)


def _refuse(spec: KernelSpec, asked: str, found: str, todo: str) -> LaunchError:
    here = Path(__file__).parent
    caller = next(
        (
            f"{f.filename}:{f.lineno}"
            for f in reversed(traceback.extract_stack())
            if Path(f.filename).parent != here and Path(f.filename).name != "spec.py"
        ),
        "the interpreter",
    )
    return LaunchError(
        f"{spec.name}: {asked}; {found}\n"
        f"  declared in {spec.declared_at}, called from {caller}\n"
        f"  {todo}"
    )


def constants_of(spec: KernelSpec, axes: Mapping[str, Any]) -> Mapping[str, int]:
    """The build constants for a shape given as numbers. Errors: SpecError on missing names."""
    try:
        return dict(spec.constants(Shape(axes)))
    except AttributeError as error:
        raise SpecError(f"{spec.name}: its build constants need more: {error}") from None

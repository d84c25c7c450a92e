"""Checks kernel arguments against a signature and packs them for the call.

CuPy checks neither count nor type; a float64 array passed for a float pointer would just be read
wrong. Here it is refused before anything runs.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4.errors import LaunchError
from dsv4.runtime.host_native import Extent

Array = npt.NDArray[Any]
_WORDS = {"f": "float", "i": "int", "u": "uint"}


def pack(
    kernel: str, signature: tuple[str, ...], args: Sequence[Array | np.generic]
) -> "ctypes.Array[ctypes.c_uint64]":
    """One 64-bit word for each argument: an address, or a scalar's bits.

    Errors: LaunchError when count, kind, dtype or writability do not fit the signature.
    """
    if len(args) != len(signature):
        raise LaunchError(
            f"{kernel}: the kernel takes {len(signature)} arguments\n"
            f"  found {len(args)}\n"
            f"  its signature is ({', '.join(signature)})\n"
            "  pass one array or NumPy scalar for each"
        )
    words = (ctypes.c_uint64 * max(1, len(args)))()
    for i, (code, arg) in enumerate(zip(signature, args, strict=True)):
        problem = _misfit(code, arg)
        if problem is not None:
            raise LaunchError(
                f"{kernel}: argument {i} is declared {spelled(code)}\n"
                f"  found {problem}\n"
                f"  its signature is ({', '.join(signature)})\n"
                f"  pass {_wanted(code)}"
            )
        if isinstance(arg, np.ndarray):
            words[i] = arg.__array_interface__["data"][0]
        else:
            words[i] = int.from_bytes(arg.tobytes(), "little")
    return words


def extents(
    signature: tuple[str, ...], args: Sequence[Array | np.generic], steady: Sequence[bool] = ()
) -> "ctypes.Array[Extent]":
    """The bytes that each array argument spans, for check mode; steady says of each argument
    whether a dependent launch may read it at once.
    """
    found = []
    for i, (code, arg) in enumerate(zip(signature, args, strict=True)):
        if isinstance(arg, np.ndarray):
            low, size_bytes = _span(arg)
            first = arg.__array_interface__["data"][0] + low
            kept = bool(steady) and steady[i]
            writable = int(code[0] == "p")
            found.append(Extent(first, size_bytes, arg.itemsize, writable, i, int(kept)))
    return (Extent * max(1, len(found)))(*found)


def spelled(code: str) -> str:
    """A signature code in words, such as `const float32*` for Pf4."""
    if code[0] in "pP":
        const = "const " if code[0] == "P" else ""
        target = "void" if code[1:] == "v" else spelled(code[1:])
        return f"{const}{target}*"
    return f"{_WORDS[code[0]]}{8 * int(code[1:])}"


def _misfit(code: str, arg: object) -> str | None:
    """What is wrong with the argument, or None."""
    if code[0] not in "pP":
        if not isinstance(arg, np.generic):
            return f"{type(arg).__name__}, not a NumPy scalar"
        return None if _fits(code, arg.dtype) else f"a NumPy scalar of {arg.dtype}"
    if not isinstance(arg, np.ndarray):
        return f"{type(arg).__name__}, not a NumPy array"
    if code[1:] != "v" and not _fits(code[1:], arg.dtype):
        return f"an array of {arg.dtype}"
    if code[0] == "p" and not arg.flags.writeable:
        return "a read-only array, but the pointer is not const"
    return None


def _fits(code: str, dtype: np.dtype[Any]) -> bool:
    if not dtype.isnative or dtype.itemsize != int(code[1:]):
        return False
    return dtype.kind == code[0] or (dtype.kind == "b" and code == "u1")


def _wanted(code: str) -> str:
    if code[0] not in "pP":
        return f"np.{spelled(code)}(value)"
    array = "any array" if code[1:] == "v" else f"an array of np.{spelled(code[1:])}"
    return array if code[0] == "P" else f"{array} that may be written"


def _span(array: Array) -> tuple[int, int]:
    """The lowest byte relative to the first element, and the number of bytes spanned."""
    if array.size == 0:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(min(0, step) for step in steps)
    high = sum(max(0, step) for step in steps) + array.itemsize
    return low, high - low

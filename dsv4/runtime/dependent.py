"""Programmatic dependent launch: a kernel that begins before the one in front of it has ended.

CuPy's own launch has no attributes; NVIDIA's `cuda-bindings` does, and is needed for this alone.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import cupy
import numpy as np

from dsv4.errors import LaunchError, Refusal
from dsv4.spec import Geometry

BLOCKS_EACH: Final = 4
"""Blocks a multiprocessor, at most, of a launch that begins early."""


def require(capability: str) -> None:
    """Whether a device of that compute capability can do it here.

    Errors: Refusal below 9.0, or without cuda-bindings.
    """
    if int(capability) < 90:
        raise Refusal(
            "DSV4_DEPENDENT_LAUNCH=on was asked for\n"
            f"  a device of compute capability {capability}; it needs 9.0 or more\n"
            "  in dsv4.runtime.dependent\n  unset it"
        )
    # Looked for in two steps: the parent of a missing package cannot be imported.
    if not (importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")):
        raise Refusal(
            "DSV4_DEPENDENT_LAUNCH=on was asked for\n  NVIDIA's cuda-bindings is not installed\n"
            "  in dsv4.runtime.dependent\n  install cuda-bindings, or unset it"
        )


def pays(geometry: Geometry, *, multiprocessors: int) -> bool:
    """Whether a launch may win by beginning early: blocks that begin where others of their own
    launch end gain nothing.
    """
    return math.prod(geometry.grid) <= BLOCKS_EACH * multiprocessors


def launcher(function: Any, geometry: Geometry, values: Sequence[Any]) -> Callable[[], None]:
    """A call that launches a CuPy function on the current stream, beginning early.

    values: CuPy arrays, which are kept alive, and NumPy scalars.
    Errors (of the call): LaunchError with the driver's words.
    """
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    kind = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.id = kind
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = geometry.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = geometry.block
    config.sharedMemBytes = geometry.shared_bytes
    config.attrs, config.numAttrs = [attribute], 1
    words, table = packed(values)
    address = ctypes.addressof(table)
    handle = driver.CUfunction(function.kernel.ptr)

    def run() -> None:
        config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
        (status,) = driver.cuLaunchKernelEx(config, handle, address, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(
                f"a dependent launch of {geometry.grid} blocks of {geometry.block} was asked for\n"
                f"  the driver says {status.name}\n  in dsv4.runtime.dependent\n"
                "  unset DSV4_DEPENDENT_LAUNCH to launch plainly"
            )

    run.__dict__["keeps"] = (values, words, table)
    return run


def packed(values: Sequence[Any]) -> tuple[list[Any], Any]:
    """(eight bytes for each value, the table of their addresses) as the driver reads them."""
    words = []
    for value in values:
        word = ctypes.create_string_buffer(8)
        bits = (
            np.int64(value.data.ptr).tobytes()
            if isinstance(value, cupy.ndarray)
            else np.asarray(value).tobytes()
        )
        ctypes.memmove(word, bits, len(bits))
        words.append(word)
    table = (ctypes.c_void_p * max(1, len(words)))(*(ctypes.addressof(word) for word in words))
    return words, table

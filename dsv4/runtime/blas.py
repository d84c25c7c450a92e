"""The library GEMM: cuBLAS through `cupy.cuda.cublas`."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas

from dsv4.errors import LaunchError

_BF16, _F32 = 14, 0  # cudaDataType values CUDA_R_16BF and CUDA_R_32F
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT


class Blas:
    """cuBLAS on one GPU; CuPy keeps one handle per device and thread."""

    def __init__(self, index: int) -> None:
        """Remember the device; the handle is made on first use."""
        self._index = index

    def gemm_bf16(self, w: Any, x: Any, out: Any) -> None:
        """out[m, n] = x[m, k] w[n, k]^T, bf16 bits in, f32 accumulation and result.

        cuBLAS is column-major, so it computes out^T[n, m] = w[n, k] x^T[k, m] on the same bytes.
        Errors: LaunchError on shapes or types that do not fit.
        """
        (n, k), (m, k_x) = w.shape, x.shape
        if k != k_x or out.shape != (m, n):
            raise LaunchError(
                f"gemm_bf16: w {list(w.shape)}, x {list(x.shape)}, out {list(out.shape)}\n"
                "  they must be [n, k], [m, k] and [m, n]"
            )
        if w.dtype != np.uint16 or x.dtype != np.uint16 or out.dtype != np.float32:
            raise LaunchError(
                f"gemm_bf16: w {w.dtype}, x {x.dtype}, out {out.dtype}\n"
                "  they must be bf16 bits (uint16), bf16 bits and float32"
            )
        handle = cupy.cuda.get_cublas_handle()
        cublas.setStream(handle, cupy.cuda.get_current_stream().ptr)
        # Kept alive in a local: cuBLAS reads both through the host pointer.
        factors = np.array([1.0, 0.0], np.float32)
        one, zero = factors.ctypes.data, factors.ctypes.data + factors.itemsize
        cublas.gemmEx(
            handle,
            cublas.CUBLAS_OP_T,
            cublas.CUBLAS_OP_N,
            n,
            m,
            k,
            one,
            w.data.ptr,
            _BF16,
            k,
            x.data.ptr,
            _BF16,
            k,
            zero,
            out.data.ptr,
            _F32,
            n,
            cublas.CUBLAS_COMPUTE_32F,
            _DEFAULT_ALGORITHM,
        )

// linear_fp8: y[m, n] = sum over k of w[n, k] * x[m, k] with w[n, k] = codes[n, k] * scale, for 1
// to 8 rows of x
//
//   codes e4m3 [N, K]    scales f32 [ceil(N / 128), ceil(K / 128)], one for each 128 x 128 block
//   linear_fp8           x bf16 [M, K], rows x_stride apart    y f32 [M, N], rows y_stride apart
//   linear_fp8_grouped   the same, but x [M, N / group * K]: rows 0 .. group - 1 of w take the first K
//                        columns of x, the next `group` rows the next K, and so on
//   linear_fp8_grouped_bf16   the same again, y rounded to bf16 as cast_bf16 does
//
// K is a multiple of 16; M is ROWS, fixed at build time. bf16 holds every code exactly, so products
// are exact; the sum of 128 of them, f32 in the order of common/gemv.cuh, is multiplied by the scale
// as it is fused onto the row's sum. linear_bf16 shares the order: on the exactly dequantised weights
// it gives the same bytes while no product or sum leaves the range of normal numbers, for a scale
// that is a power of two changes no rounding. No rounding after the sum.
//
// Scales are values, never E8M0 bytes, and any float will do. x stays below 2^111, so that the sum of
// a group is finite before it is scaled. A NaN code makes its row NaN.
#include "common/fp8_weights.cuh"

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    linear_fp8(const u8* __restrict__ codes, const float* __restrict__ scales, const bf16* x,
               float* __restrict__ y, int N, int K, i64 x_stride, i64 y_stride) {
    gemv<false>(Fp8Weights{codes, scales, N, (K + 127) / 128}, x, y, N, K, N, x_stride, y_stride);
}

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    linear_fp8_grouped(const u8* __restrict__ codes, const float* __restrict__ scales,
                       const bf16* x, float* __restrict__ y, int N, int K, int group, i64 x_stride,
                       i64 y_stride) {
    gemv<true>(Fp8Weights{codes, scales, N, (K + 127) / 128}, x, y, N, K, group, x_stride,
               y_stride);
}

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    linear_fp8_grouped_bf16(const u8* __restrict__ codes, const float* __restrict__ scales,
                            const bf16* x, bf16* __restrict__ y, int N, int K, int group,
                            i64 x_stride, i64 y_stride) {
    gemv<true>(Fp8Weights{codes, scales, N, (K + 127) / 128}, x, y, N, K, group, x_stride,
               y_stride);
}

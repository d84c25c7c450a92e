// rms_norm: rows, or the lanes of each head, scaled to unit mean square
//
//   rms_norm       x f32 [T, D]   w f32 [D]   y f32 [T, D]   y = w * (x * r)
//   rms_norm_head  x f32 [T, H, K], in place                 x = x * r for each head's K lanes
//   r = 1 / sqrt(mean(x^2) + eps)
//
// One block a row (a head is a row), 512 threads or 128 for a head. Thread i adds the squares i,
// i + blockDim, ... in ascending order, then block_sum: the order depends on the row's length
// alone. The plain kernels sum in f64, where squares of f32 are exact; those ending in _f32 sum in
// f32 with fused squares. The mean is then an f32, and mean + eps, root, reciprocal and the
// products round once each, in f32.
//
// Beyond |x| = 2^63 the mean leaves f32 and the row becomes zero; in the _f32 kernels, whose
// squares are f32 too, beyond 2^63 / sqrt(D).
#include "common/probe.cuh"
#include "common/reduce.cuh"

__device__ __forceinline__ double add_square(double sum, float x) {
    return fma((double)x, (double)x, sum);
}
__device__ __forceinline__ float add_square(float sum, float x) { return fmaf(x, x, sum); }

// The factor of this block's row.
template <class Sum>
__device__ __forceinline__ float row_factor(const float* x, int length, float eps, Sum* scratch) {
    Sum sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < length; i += blockDim.x) sum = add_square(sum, x[i]);
    const float mean = (float)(block_sum(sum, scratch) / (Sum)length);
    const float factor = 1.0f / sqrtf(mean + eps);
    if (threadIdx.x == 0) {
        PROBE("mean_square", blockIdx.x, mean);
        PROBE("factor", blockIdx.x, factor);
    }
    return factor;
}

template <class Sum>
__device__ __forceinline__ void norm_row(const float* x, const float* w, float* y, int D, float eps,
                                         Sum* scratch) {
    x += (i64)blockIdx.x * D;
    y += (i64)blockIdx.x * D;
    const float factor = row_factor(x, D, eps, scratch);
#pragma unroll 8
    for (int i = threadIdx.x; i < D; i += blockDim.x) y[i] = w[i] * (x[i] * factor);
}

// A thread reads back only what it wrote itself, so x may be changed in place.
template <class Sum>
__device__ __forceinline__ void norm_head(float* x, int K, float eps, Sum* scratch) {
    x += (i64)blockIdx.x * K;
    const float factor = row_factor(x, K, eps, scratch);
    for (int i = threadIdx.x; i < K; i += blockDim.x) x[i] *= factor;
}

extern "C" __global__ void __launch_bounds__(512)
    rms_norm(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int D,
             float eps) {
    __shared__ double scratch[32];
    norm_row(x, w, y, D, eps, scratch);
}

extern "C" __global__ void __launch_bounds__(512)
    rms_norm_f32(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                 int D, float eps) {
    __shared__ float scratch[32];
    norm_row(x, w, y, D, eps, scratch);
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_head(float* x, int K, float eps) {
    __shared__ double scratch[32];
    norm_head(x, K, eps, scratch);
}

extern "C" __global__ void __launch_bounds__(128) rms_norm_head_f32(float* x, int K, float eps) {
    __shared__ float scratch[32];
    norm_head(x, K, eps, scratch);
}

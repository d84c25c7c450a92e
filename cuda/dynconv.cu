// dynconv: grouped dynamic causal convolution inside a block, before or after a sublayer
//
//   y[i, c] = sum over taps t <= i of (base[S, t, c] + own[i, S, t, c / (D/G)]) * x[i - t, c]
//
//   x f32 [T, D]    base f32 [2, C, D]    own f32 [T, 2, C, G]    y f32 [T, D]    S = STAGE
//
// One thread a row and channel. The coefficient is rounded once, then taps are added in ascending
// order, sum = fmaf(coefficient, x, sum). Row 0 uses tap 0 only: a block has no memory.
#include "common/math.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    dynconv(const float* x, const float* base, const float* own, float* y, i32 D, i32 C, i32 G) {
    const i32 row = blockIdx.x, column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const float* weights = base + (i64)STAGE * C * D + column;
    const float* coefficients = own + ((i64)row * 2 + STAGE) * C * G + column / (D / G);
    float sum = 0.0f;
    for (i32 t = 0; t < min(C, row + 1); ++t)
        sum = fmaf(weights[(i64)t * D] + coefficients[t * G], x[(i64)(row - t) * D + column], sum);
    y[(i64)row * D + column] = sum;
}

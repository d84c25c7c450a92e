// swiglu: y[t,d] = silu(g) u, silu(g) = g / (1 + e^-g), with g and u clamped first
//
//   swiglu            gate f32 [T, D]    up f32 [T, D]    y f32 [T, D]
//   swiglu_weighted   the same, times weights f32 [T]
//
// limit > 0: g = min(gate, limit), u = clamp(up, -limit, limit); the gate has no lower clamp.
// limit <= 0: no clamps. NaN stays NaN through the clamps; a gate of -inf counts as a very negative
// one, so that y is -0 times a finite up.
//
// One thread an element, no sums; the formula is in common/swiglu.cuh.
#include "common/swiglu.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu(const float* gate, const float* up, float* y, i32 D, float limit) {
    const i32 column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const i64 at = (i64)blockIdx.x * D + column;
    y[at] = weighted_swiglu(gate[at], up[at], limit, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu_weighted(const float* gate, const float* up, const float* weights, float* y, i32 D,
                    float limit) {
    const i32 column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const i64 at = (i64)blockIdx.x * D + column;
    y[at] = weighted_swiglu(gate[at], up[at], limit, weights[blockIdx.x]);
}

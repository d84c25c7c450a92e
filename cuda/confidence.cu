// confidence: how likely a draft token is to be accepted, as a raw logit
//
//   y[t] = sum over d of x[t, d] proj[d] + sum over r of w1[ids[t], r] proj[D + r]
//
//   x f32 [T, D]    w1 bf16 [V, R]    ids i32 [T]    proj bf16 [D + R]    y f32 [T]
//
// One product with the concatenation of x[t] and row ids[t] of w1, summed in f64 in the order of
// common/parts.cuh with one step of 256 elements a part: the bytes of island_dots_bf16 on the
// concatenation, which is never built. One rounding, at the store.
//
// One block a row; a warp takes every WARPS-th step. ids are read on the device: an id that is no row
// of w1 gives NaN and reads nothing.
#include "common/convert.cuh"
#include "common/math.cuh"
#include "common/parts.cuh"

constexpr int WARPS = 16;
constexpr int MAX_PARTS = 1024;

// 8 elements of the concatenation, from k on. Both halves have whole eights, so none straddles.
__device__ __forceinline__ void load_input(const float* x, const bf16* row, int D, int k,
                                           float (&v)[LANE_ELEMENTS]) {
    if (k >= D) {
        bf16x8_to_f32(load16(row + (k - D)), v);
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMENTS; i += 4) {
        const Floats<4> four = load_floats<4>(x + k + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i + j] = four.at[j];
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    confidence(const float* x, const bf16* w1, const i32* ids, const bf16* proj, float* y, i32 V,
               i32 D, i32 R) {
    __shared__ double partial[MAX_PARTS];
    const i32 id = ids[blockIdx.x];
    if (id < 0 || id >= V) {
        if (threadIdx.x == 0) y[blockIdx.x] = NAN_F32;
        return;
    }
    x += (i64)blockIdx.x * D;
    w1 += (i64)id * R;
    const int lane = threadIdx.x % 32, parts = (D + R + STEP - 1) / STEP;
    for (int part = threadIdx.x / 32; part < parts; part += WARPS) {
        const int k = part * STEP + lane * LANE_ELEMENTS;
        double sum = 0;
        if (k < D + R) {
            float v[LANE_ELEMENTS], w[LANE_ELEMENTS];
            load_input(x, w1, D, k, v);
            bf16x8_to_f32(load16(proj + k), w);
#pragma unroll
            for (int i = 0; i < LANE_ELEMENTS; ++i) sum = multiply_add(w[i], v[i], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) partial[part] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const double total = sum_of_parts(partial, parts, 1);
    if (lane == 0) y[blockIdx.x] = total == total ? (float)total : NAN_F32;
}

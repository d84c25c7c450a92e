// Scores of experts, which of them are chosen, and how much each weighs: what router says, for kernels
// that route on the way and must give its bytes.
#pragma once

#include "common/math.cuh"
#include "common/probe.cuh"
#include "common/reduce.cuh"

constexpr float SOFTPLUS_LINEAR = 20.0f;

__device__ __forceinline__ float score_of(float raw) {
    if (raw > SOFTPLUS_LINEAR) return sqrtf(raw);
    return (float)sqrt(log1p_f64(exp_f64((double)raw)));
}

// Weights and order of the slots; lane a < A holds slot a. By a whole warp.
__device__ __forceinline__ void finish(i32 id, float score, float scale, i64 row, i32 A, i32* ids,
                                       float* weights, i32* order) {
    const i32 lane = threadIdx.x % 32;
    const i64 at = row * A;
    float total = 0.0f;
    i32 rank = 0;
    for (i32 a = 0; a < A; ++a) {
        total += __shfl_sync(FULL_WARP, score, a);
        const i32 other = __shfl_sync(FULL_WARP, id, a);
        rank += other < id || (other == id && a < lane);
    }
    if (lane == 0) PROBE("total", row, total);
    if (lane >= A) return;
    PROBE("chosen_score", at + lane, score);
    ids[at + lane] = id;
    weights[at + lane] = total == 0.0f ? scale / (float)A : score / total * scale;
    order[at + rank] = lane;
}

// The largest of the warp's values, on every lane.
__device__ __forceinline__ i32 warp_max_integer(i32 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL_WARP, value);
#else
    return warp_max(value);
#endif
}

// Larger for a larger key, equal for equal ones; NaN below all numbers, and above the lowest i32.
__device__ __forceinline__ i32 rank_of(float key) {
    const u32 bits = __float_as_uint(key + 0.0f);  // -0 becomes +0
    const u32 order = key != key ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (i32)(order ^ 0x80000000u);
}

// The expert with the largest key that is not taken, ties to the lowest, on every lane; lane l has
// the keys of experts l, l + 32, ... as ranks. It is taken then.
template <int PerLane>
__device__ __forceinline__ i32 take_largest(i32 (&rank)[PerLane]) {
    constexpr i32 TAKEN = -2147483647 - 1;
    const i32 lane = threadIdx.x % 32;
    i32 best = rank[0], place = 0;
#pragma unroll
    for (i32 i = 1; i < PerLane; ++i)
        if (rank[i] > best) best = rank[i], place = i;
    const i32 largest = warp_max_integer(best);
    // The lowest of the experts that reach it is the largest of their negatives.
    const i32 mine = 32 * place + lane;
    const i32 id = -warp_max_integer(best == largest ? -mine : TAKEN);
#pragma unroll
    for (i32 i = 0; i < PerLane; ++i)
        if (id == 32 * i + lane) rank[i] = TAKEN;
    return id;
}

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
    for (i32 first = 0; first < A; first += 8)
#pragma unroll
        for (i32 a = first; a < first + 8; ++a) {
            // Slots that do not exist are asked for too: so all answers are on their way at once.
            const float weight = __shfl_sync(FULL_WARP, score, a);
            const i32 other = __shfl_sync(FULL_WARP, id, a);
            if (a < A) total += weight;
            rank += a < A && (other < id || (other == id && a < lane));
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

constexpr i32 NO_RANK = -2147483647 - 1;  // of what is taken, and of what is no expert

// A rank, and its place in a lane.
struct Leader {
    i32 rank, place;
};

// The largest of a lane's ranks from First on, ties to the first.
template <int First, int Count, int PerLane>
__device__ __forceinline__ Leader leader_of(const i32 (&rank)[PerLane]) {
    if constexpr (Count == 1) {
        return {rank[First], First};
    } else {
        constexpr int HALF = (Count + 1) / 2;
        const Leader a = leader_of<First, HALF>(rank);
        const Leader b = leader_of<First + HALF, Count - HALF>(rank);
        return b.rank > a.rank ? b : a;
    }
}

// The `count` experts with the largest keys, the a-th on lane a, ties to the lowest; by a whole warp.
// Lane l has the keys of experts l PerLane + i as ranks, so the first of equal lanes has the lowest.
template <int PerLane>
__device__ __forceinline__ i32 take_largest(i32 (&rank)[PerLane], i32 count) {
    const i32 lane = threadIdx.x % 32;
    Leader leader = leader_of<0, PerLane>(rank);
    bool rises = true;  // the lane's next one to be its leader
    i32 id = 0, place = leader.place;
    for (i32 a = 0; a < count; ++a) {
#pragma unroll
        for (i32 i = 0; i < PerLane; ++i)
            if (rises && i == place) rank[i] = NO_RANK;
        // Found whether it is needed or not, while the lanes compare: so they wait for nothing else.
        const Leader next = leader_of<0, PerLane>(rank);
        place = next.place;
        const i32 largest = warp_max_integer(leader.rank);
        const u32 equal = __ballot_sync(FULL_WARP, leader.rank == largest);
        rises = leader.rank == largest && (equal & ((1u << lane) - 1)) == 0;
        const i32 taken = __shfl_sync(FULL_WARP, PerLane * lane + leader.place, __ffs(equal) - 1);
        if (a == lane) id = taken;
        if (rises) leader = next;
    }
    return id;
}

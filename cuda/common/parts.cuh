// A dot product in an order that blocks, warps and fused kernels can share, so that all of them give
// the same bytes.
//
// K is cut into steps of 256 elements: a lane takes 8 consecutive ones, in ascending order, each a
// fused multiply-add onto its running sum. Neighbouring steps form a part; a lane walks the steps of
// a part in ascending order, then the warp folds its lanes by the xor butterfly. At the end one warp
// adds up the parts: lane l takes parts l, l + 32, ... in ascending order, and the butterfly folds the
// lanes. Who computes which part, and beside what else, does not show.
//
// Sums start from +0, so they are never -0, and a lane without elements changes nothing.
#pragma once

#include "common/floats.cuh"
#include "common/reduce.cuh"

constexpr int LANE_ELEMENTS = 8;
constexpr int STEP = 32 * LANE_ELEMENTS;

// a * b + c, rounded once in the type of the sum; in double the product of two floats is exact.
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(float a, float b, double c) {
    return fma((double)a, (double)b, c);
}

// The sum of the parts, on every lane; by a whole warp. parts: `count` sums, `stride` apart.
template <class Sum>
__device__ __forceinline__ Sum sum_of_parts(const Sum* parts, int count, int stride) {
    Sum sum = 0;
    for (int part = threadIdx.x % 32; part < count; part += 32) sum += parts[part * stride];
    return warp_sum(sum);
}

// The same by one thread, for at most 32 parts that lie side by side: lane 0 of the butterfly has the
// sum of the even lanes and that of the odd ones, each made in the same way.
template <int Count, int First = 0, int Stride = 1>
__device__ __forceinline__ float folded_parts(const float* parts) {
    static_assert(Count >= 1 && Count <= 32, "a lane has one part");
    if constexpr (Stride == 32)
        return First < Count ? 0.0f + parts[First] : 0.0f;
    else
        return folded_parts<Count, First, 2 * Stride>(parts) +
               folded_parts<Count, First + Stride, 2 * Stride>(parts);
}

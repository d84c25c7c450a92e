// Sylvester's butterflies with h = 1, 2, 4, ..: every result takes elements j and j + h to their sum and
// their difference, each rounding. The bytes do not depend on how lanes share the elements.
#pragma once

#include "common/reduce.cuh"

// Per neighbouring elements in each of Lanes lanes, of which this one is `part`. By a whole warp: lanes
// without elements take part with zeros.
template <int Lanes, int Per>
__device__ __forceinline__ void butterflies(float (&v)[Per], int part) {
    // Inside the lane.
#pragma unroll
    for (int h = 1; h < Per; h *= 2) {
#pragma unroll
        for (int i = 0; i < Per; ++i) {
            if (i & h) continue;
            const float a = v[i], b = v[i + h];
            v[i] = a + b;
            v[i + h] = a - b;
        }
    }
    // Across lanes.
#pragma unroll
    for (int h = 1; h < Lanes; h *= 2) {
#pragma unroll
        for (int i = 0; i < Per; ++i) {
            const float other = __shfl_xor_sync(FULL_WARP, v[i], h);
            v[i] = part & h ? other - v[i] : v[i] + other;
        }
    }
}

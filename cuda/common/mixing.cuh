// Coefficients of hyper-connections from the mixes of a token: scaled mixes, and sigmoid gates.
//
// Exponentials are exp_exact: the same bytes on both backends.
//
// Build constants: STREAMS (M, 1..8).
#pragma once

#include "common/parts.cuh"

constexpr int MIXES = (2 + STREAMS) * STREAMS;

static_assert(STREAMS >= 1 && STREAMS <= 8, "1 to 8 residual streams");

// Both forms keep their digits: e^-z would overflow for z below -88, where sigmoid is e^z.
__device__ __forceinline__ float sigmoid(float z) {
    const float e = exp_exact(-fabsf(z));
    return (z < 0.0f ? e : 1.0f) / (1.0f + e);
}

__device__ __forceinline__ float gate(float mix, float scale, float base) {
    return sigmoid(fmaf(mix, scale, base));
}

// A mix times the inverse root: one rounding from double, or the roundings of an f32 norm.
__device__ __forceinline__ float scaled(float mix, double squares, int count, float eps) {
    return (float)((double)mix / sqrt(squares / (double)count + (double)eps));
}
__device__ __forceinline__ float scaled(float mix, float squares, int count, float eps) {
    return mix * (1.0f / sqrtf(squares / (float)count + eps));
}

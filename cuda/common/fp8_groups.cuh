// A group of activations as FP8 codes under one power-of-two scale: what act_quant does, for kernels
// that quantise on the way and must give its bytes.
//
// amax is the largest finite magnitude of the group, at least a floor; the scale is 2^k with the
// smallest k for which amax <= 448 * 2^k, found by comparing bits. x * 2^-k is exact (a quotient that
// underflows is far below the smallest code), so each value rounds once, to nearest with ties to the
// even code. NaN stays NaN; an infinity saturates.
#pragma once

#include "common/convert.cuh"
#include "common/math.cuh"
#include "common/reduce.cuh"

constexpr float FP8_FLOOR = 1e-4f;
constexpr u32 MANTISSA_OF_448 = 0x600000;  // 448 = 1.75 * 2^8

__device__ __forceinline__ float finite_magnitude(float x) {
    const float magnitude = fabsf(x);
    return magnitude <= MAX_F32 ? magnitude : 0.0f;
}

// The k of a group with that amax.
__device__ __forceinline__ int fp8_exponent_of(float amax) {
    return scale_exponent(amax, MANTISSA_OF_448) - 8;
}

// The code of a value for a scale whose inverse is given; what rounds to zero becomes code 0.
__device__ __forceinline__ u8 fp8_code(float value, float inverse) {
    const u8 code = f32_to_e4m3(value * inverse);
    return code == 0x80 ? 0 : code;
}

// The largest of the warp's values, none of them negative or NaN, on every lane.
__device__ __forceinline__ float warp_max_positive(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    // Bits of positive floats are in the order of the floats.
    return __uint_as_float(__reduce_max_sync(FULL_WARP, __float_as_uint(value)));
#else
    return warp_max(value);
#endif
}

// Four codes in a word, the first in its low byte, to be multiplied and not to be stored: zeros and
// NaNs may have the other sign, which no sum of products shows.
__device__ __forceinline__ u32 fp8_factors(const float (&value)[4], float inverse) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(low)
        : "f"(value[1] * inverse), "f"(value[0] * inverse));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(high)
        : "f"(value[3] * inverse), "f"(value[2] * inverse));
    return (u32)high << 16 | low;
#else
    u32 word = 0;
    for (int i = 0; i < 4; ++i) word |= (u32)f32_to_e4m3(value[i] * inverse) << 8 * i;
    return word;
#endif
}

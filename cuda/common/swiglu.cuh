// The activation of an expert: silu(g) u times a weight, silu(g) = g / (1 + e^-g), g and u clamped first.
//
// e^-g overflows for g below -88, and g e^g is a subnormal long before it is zero: a formula in plain
// floats loses digits there, or everything. So every factor is taken apart into mantissa and exponent,
// the mantissas are multiplied (each product rounds once, far from either end of the range), the
// exponents are added, and 2^sum is applied last. Only that step can round to a subnormal or overflow,
// and there the result itself does.
#pragma once

#include "common/math.cuh"

// Below this gate y is zero for any finite up and weight; the bound keeps the exponents small.
constexpr float LOWEST_GATE = -700.0f;

// v as mantissa * 2^n, mantissa in +-[1, 2), n added to the exponent. Zero, inf and NaN: as they are.
__device__ __forceinline__ float take_apart(float v, i32& exponent) {
    i32 field = __float_as_uint(v) >> 23 & 255;
    if (v == 0.0f || field == 255) return v;
    if (field == 0) {  // a subnormal: 2^24 v is normal
        v *= 0x1p24f;
        field = (__float_as_uint(v) >> 23 & 255) - 24;
    }
    exponent += field - 127;
    return __uint_as_float((__float_as_uint(v) & 0x807fffffu) | 0x3f800000u);
}

// mantissa * 2^exponent for |mantissa| in [2^-2, 2^4): in two exact powers of two, of which the
// first leaves the range only where the result does.
__device__ __forceinline__ float put_together(float mantissa, i32 exponent) {
    exponent = max(-250, min(250, exponent));
    const i32 half = exponent >> 1;
    return mantissa * __uint_as_float((u32)(half + 127) << 23) *
           __uint_as_float((u32)(exponent - half + 127) << 23);
}

__device__ __forceinline__ float weighted_swiglu(float gate, float up, float limit, float weight) {
    // Comparisons, not fminf: that would drop a NaN.
    if (limit > 0.0f) {
        if (gate > limit) gate = limit;
        if (up > limit) up = limit;
        if (up < -limit) up = -limit;
    }
    if (gate < LOWEST_GATE) gate = LOWEST_GATE;

    // silu(g) is g / (1 + e) for g >= 0 and g e / (1 + e) below, with e = e^-|g| <= 1.
    i32 power;
    const float y = exp_split(fmaxf(-fabsf(gate), LOWEST_GATE), power);
    const float e = put_together(y, power);
    i32 exponent = gate < 0.0f ? power : 0;
    const float share = (gate < 0.0f ? y : 1.0f) / (1.0f + e);
    float product = take_apart(gate, exponent) * share;
    product *= take_apart(up, exponent);
    product *= take_apart(weight, exponent);
    return put_together(product, exponent);
}

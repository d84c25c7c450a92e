// Constants and functions that give the same bits on both backends.
//
// NVRTC has no INFINITY or NAN, so use the constants here. The library's expf may differ by an ulp
// between a GPU and a CPU; exp_exact does not.
#pragma once

#include "common/types.cuh"

#define INF_F32 __uint_as_float(0x7f800000u)
#define NAN_F32 __uint_as_float(0x7fffffffu)  // the quiet NaN that the device itself produces
#define MAX_F32 __uint_as_float(0x7f7fffffu)
#define INF_F64 __longlong_as_double(0x7ff0000000000000ll)
#define NAN_F64 __longlong_as_double(0x7fffffffffffffffll)

// e^x as y * 2^power with y in [0.7, 1.42), within 1.1 ulp, for |x| up to 1000: a caller that has
// more factors can multiply them first and scale last, where e^x alone would leave the range.
//
// x = n ln2 + r with |r| <= ln2 / 2; e^r = 1 + (r + r^2 q(r)).
__device__ __forceinline__ float exp_split(float x, i32& power) {
    // Adding 1.5 * 2^23 leaves the nearest integer to x / ln2 in the low bits.
    const float magic = 12582912.0f;
    const float shifted = fmaf(x, 1.44269504f, magic);
    power = (i32)__float_as_uint(shifted) - (i32)__float_as_uint(magic);
    const float whole = shifted - magic;
    // ln2 in two parts; the first has trailing zeros, so x - whole * first is exact.
    const float rest = fmaf(whole, -1.42860677e-6f, fmaf(whole, -0.693145752f, x));
    float q = fmaf(0x1.6d4366p-10f, rest, 0x1.120ba6p-7f);
    q = fmaf(q, rest, 0x1.5554e8p-5f);
    q = fmaf(q, rest, 0x1.5554dcp-3f);
    q = fmaf(q, rest, 0.5f);
    return 1.0f + fmaf(rest * rest, q, rest);
}

// e^x, at most 1.1 ulp from the exact value (measured over every float), subnormal results included
// in the range: below -103.97 the result is 0, above 88.72 infinity, NaN for NaN.
//
// 2^power goes in as two exact powers of two, of which only the second multiplication can round,
// and only to a subnormal.
__device__ __forceinline__ float exp_exact(float x) {
    if (x != x) return NAN_F32;
    if (x > 88.7228394f) return INF_F32;
    if (x < -103.972084f) return 0.0f;
    i32 power;
    const float y = exp_split(x, power);
    const i32 half = power >> 1;
    const float first = __uint_as_float((u32)(half + 127) << 23);
    const float second = __uint_as_float((u32)(power - half + 127) << 23);
    return y * first * second;
}

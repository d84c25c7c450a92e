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

// The same in double, within 1 ulp, for |x| up to 2^50.
__device__ __forceinline__ double exp_split(double x, i64& power) {
    const double magic = 6755399441055744.0;  // 1.5 * 2^52
    const double shifted = fma(x, 0x1.71547652b82fep+0, magic);
    power = __double_as_longlong(shifted) - __double_as_longlong(magic);
    const double whole = shifted - magic;
    // ln2 in two parts; the first has 32 bits, so x - whole * first is exact.
    const double rest = fma(whole, -0x1.a39ef35793c76p-33, fma(whole, -0x1.62e42fee00000p-1, x));
    // e^rest by its series: |rest| <= 0.347, so the first term left out is below 2^-57.
    double q = 1.0 / 6227020800.0;
    q = fma(q, rest, 1.0 / 479001600.0);
    q = fma(q, rest, 1.0 / 39916800.0);
    q = fma(q, rest, 1.0 / 3628800.0);
    q = fma(q, rest, 1.0 / 362880.0);
    q = fma(q, rest, 1.0 / 40320.0);
    q = fma(q, rest, 1.0 / 5040.0);
    q = fma(q, rest, 1.0 / 720.0);
    q = fma(q, rest, 1.0 / 120.0);
    q = fma(q, rest, 1.0 / 24.0);
    q = fma(q, rest, 1.0 / 6.0);
    q = fma(q, rest, 0.5);
    return 1.0 + fma(rest * rest, q, rest);
}

// e^x in double, within 1 ulp of the exact value (measured), subnormal results included in the range:
// 0 below -745.14, infinity above 709.79, NaN for NaN.
__device__ __forceinline__ double exp_f64(double x) {
    if (x != x) return NAN_F64;
    if (x > 709.79) return INF_F64;
    if (x < -745.14) return 0.0;
    i64 power;
    const double y = exp_split(x, power);
    const i64 half = power >> 1;
    const double first = __longlong_as_double((half + 1023) << 52);
    const double second = __longlong_as_double((power - half + 1023) << 52);
    return y * first * second;
}

// ln(1 + x) in double for x >= 0, within 2 ulp of the exact value (measured); infinity for infinity,
// NaN for NaN.
//
// 1 + x = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh t with t = (m - 1) / (m + 1), by its
// series. What 1 + x lost is put back as a first-order term, so tiny x keep all their digits.
__device__ __forceinline__ double log1p_f64(double x) {
    if (!(x < INF_F64)) return x;
    const double sum = 1.0 + x;
    const double lost = x < 1.0 ? x - (sum - 1.0) : 1.0 - (sum - x);
    i64 bits = __double_as_longlong(sum);
    // Mantissas from sqrt(2) up count as the next power's.
    const i64 k = ((bits + (0x3ff0000000000000ll - 0x3fe6a09e667f3bcdll)) >> 52) - 1023;
    const double m = __longlong_as_double(bits - (k << 52));
    const double t = (m - 1.0) / (m + 1.0);
    const double z = t * t;  // at most 0.0295: the first term left out is below 2^-55
    double q = 1.0 / 19.0;
    q = fma(q, z, 1.0 / 17.0);
    q = fma(q, z, 1.0 / 15.0);
    q = fma(q, z, 1.0 / 13.0);
    q = fma(q, z, 1.0 / 11.0);
    q = fma(q, z, 1.0 / 9.0);
    q = fma(q, z, 1.0 / 7.0);
    q = fma(q, z, 1.0 / 5.0);
    q = fma(q, z, 1.0 / 3.0);
    const double tail = fma(2.0 * t, q * z, fma((double)k, 0x1.a39ef35793c76p-33, lost / sum));
    return fma((double)k, 0x1.62e42fee00000p-1, 2.0 * t + tail);
}

// a / b rounded once, for a and b from 2^-60 to 2^60: the steps by which the device divides, without its
// check of their range and the branch behind it, which wait for both.
__device__ __forceinline__ float divided_in_range(float a, float b) {
#ifdef DSV4_HOST
    return a / b;
#else
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    inverse = fmaf(inverse, fmaf(-b, inverse, 1.0f), inverse);
    float quotient = a * inverse;
    quotient = fmaf(fmaf(-b, quotient, a), inverse, quotient);
    return fmaf(fmaf(-b, quotient, a), inverse, quotient);
#endif
}

// Exponentials with their power of two kept apart: e^x = y * 2^power.
//
// A softmax adds weights e^x relative to the largest. With the maximum subtracted, x - max rounds,
// and a running maximum that changes costs another exponential, which rounds as well. With powers
// of two as the common measure nothing is subtracted and every rescaling is exact, so sums that
// were taken apart can be joined without a trace of where they were cut.
//
// A power is a whole number in the type of the sums, float or double, however large x is.
#pragma once

#include "common/math.cuh"

// The power of nothing: below every power of a number, so it never becomes the common measure.
template <class Real>
__device__ constexpr Real no_power();
template <>
__device__ constexpr float no_power<float>() {
    return -0x1.fffffep+127f;
}
template <>
__device__ constexpr double no_power<double>() {
    return -0x1.fffffffffffffp+1023;
}

// y of e^x = y * 2^power, y in [0.7, 1.42), within 2 ulp. Minus infinity gives 0 and the power of
// nothing; NaN and plus infinity give NaN. From |x| = 2^20 on y is 1, right to a factor of sqrt(2):
// there x lies 2^-4 or more from its neighbour.
__device__ __forceinline__ float exp_scaled(float x, float& power) {
    if (fabsf(x) < 0x1p20f) {
        i32 whole;
        const float y = exp_split(x, whole);
        power = (float)whole;
        return y;
    }
    if (!(x < INF_F32)) {
        power = 0.0f;
        return NAN_F32;
    }
    power = x == -INF_F32 ? no_power<float>()
                          : fmaxf(-0x1p127f, fminf(0x1p127f, rintf(x * 1.44269504f)));
    return x == -INF_F32 ? 0.0f : 1.0f;
}

// The same in double, within 1 ulp; y is 1 from |x| = 2^50 on, where neighbours lie 2^-2 apart.
__device__ __forceinline__ double exp_scaled(double x, double& power) {
    if (fabs(x) < 0x1p50) {
        i64 whole;
        const double y = exp_split(x, whole);
        power = (double)whole;
        return y;
    }
    if (!(x < INF_F64)) {
        power = 0.0;
        return NAN_F64;
    }
    power = x == -INF_F64 ? no_power<double>()
                          : fmax(-0x1p1023, fmin(0x1p1023, rint(x * 0x1.71547652b82fep+0)));
    return x == -INF_F64 ? 0.0 : 1.0;
}

// 2^power for a power that is whole and at most 0, as two factors that are no subnormals.
struct Scale {
    float first, second;
};
__device__ __forceinline__ Scale scale_of(float power) {
    const i32 whole = (i32)fmaxf(power, -252.0f);
    const i32 half = whole >> 1;
    return {__uint_as_float((u32)(half + 127) << 23),
            __uint_as_float((u32)(whole - half + 127) << 23)};
}

// x * 2^power for a power that is whole and at most 0. Exact, except that a subnormal result rounds
// once.
__device__ __forceinline__ float scaled(float x, Scale by) { return x * by.first * by.second; }
__device__ __forceinline__ float scaled(float x, float power) { return scaled(x, scale_of(power)); }

// Below 2^-1000 nothing that began as a float is left of x, so one factor will do.
__device__ __forceinline__ double scaled(double x, double power) {
    const i64 whole = (i64)fmax(power, -1000.0);
    return x * __longlong_as_double((whole + 1023) << 52);
}

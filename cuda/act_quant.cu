// act_quant: activations rounded to FP8 or FP4 codes, one power-of-two scale for a group of lanes
//
//   act_quant_fp8_inplace  x f32 [T, S], rows x_stride apart; lanes below prefix: code * scale
//   act_quant_fp8          x f32 [T, K], rows x_stride apart
//                          -> codes e4m3 [T, K], scales f32 [T, K / GROUP]
//   act_quant_fp4_inplace  x f32 [T, K]; lanes: code * scale, groups of 32
//
// amax is the largest finite magnitude of the group, at least a floor; scale = 2^k with the
// smallest k for which amax <= largest code * 2^k, found by comparing bits. x / scale and code *
// scale are exact (a quotient that underflows is far below the smallest code), so each value rounds
// once, to nearest with ties to the even code. NaN stays NaN; an infinity saturates.
//
// One warp a group, a block covers 512 lanes of a row (128 in FP4); rows lie on grid x.
// CLAMP_ONLY leaves the rounding out: then only infinities change.
#include "common/fp8_groups.cuh"
#include "common/probe.cuh"

#ifndef GROUP
#define GROUP 32
#endif
#ifndef CLAMP_ONLY
#define CLAMP_ONLY 0
#endif

constexpr int LANES = GROUP / 32;        // lanes of a group that one thread holds, 32 apart
constexpr u32 MANTISSA_OF_6 = 0x400000;  // 6 = 1.5 * 2^2

// The exponent of the group's scale; every lane of the warp gets it. `at` is the group's number.
__device__ __forceinline__ int group_exponent(const float (&x)[LANES], float floor, u32 mantissa,
                                              int exponent, i64 at) {
    float amax = floor;
#pragma unroll
    for (int i = 0; i < LANES; ++i) amax = fmaxf(amax, finite_magnitude(x[i]));
    amax = warp_max(amax);
    const int k = scale_exponent(amax, mantissa) - exponent;
    if (threadIdx.x % 32 == 0) {
        PROBE("amax", at, amax);
        PROBE("exponent", at, k);
    }
    return k;
}

__device__ __forceinline__ int fp8_exponent(const float (&x)[LANES], i64 at) {
    return group_exponent(x, FP8_FLOOR, MANTISSA_OF_448, 8, at);
}

// Which group of its row this warp has.
__device__ __forceinline__ int group_of_warp() {
    return blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
}

__device__ __forceinline__ void load_group(const float* from, float (&x)[LANES]) {
#pragma unroll
    for (int i = 0; i < LANES; ++i) x[i] = from[32 * i];
}

extern "C" __global__ void __launch_bounds__(256)
    act_quant_fp8_inplace(float* x, i64 x_stride, int prefix) {
    const int group = group_of_warp();
    if (group >= prefix / GROUP) return;
    float* const at = x + blockIdx.x * x_stride + group * GROUP + threadIdx.x % 32;
    float v[LANES];
    load_group(at, v);
    const int k = fp8_exponent(v, (i64)blockIdx.x * (prefix / GROUP) + group);
    const float scale = exp2_of(k), inverse = exp2_of(-k), limit = 448.0f * scale;
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        if (CLAMP_ONLY) {
            at[32 * i] = v[i] > limit ? limit : v[i] < -limit ? -limit : v[i];
        } else {
            at[32 * i] = e4m3_to_f32(f32_to_e4m3(v[i] * inverse)) * scale;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    act_quant_fp8(const float* __restrict__ x, u8* __restrict__ codes, float* __restrict__ scales,
                  int K, i64 x_stride) {
    const int group = group_of_warp(), lane = threadIdx.x % 32;
    if (group >= K / GROUP) return;
    float v[LANES];
    load_group(x + blockIdx.x * x_stride + group * GROUP + lane, v);
    const int k = fp8_exponent(v, (i64)blockIdx.x * (K / GROUP) + group);
    const float inverse = exp2_of(-k);
    u8* const at = codes + (i64)blockIdx.x * K + group * GROUP + lane;
#pragma unroll
    for (int i = 0; i < LANES; ++i) at[32 * i] = fp8_code(v[i], inverse);
    if (lane == 0) scales[(i64)blockIdx.x * (K / GROUP) + group] = exp2_of(k);
}

extern "C" __global__ void __launch_bounds__(128) act_quant_fp4_inplace(float* x, int K) {
    const int group = group_of_warp();
    if (group >= K / GROUP) return;
    float* const at = x + (i64)blockIdx.x * K + group * GROUP + threadIdx.x % 32;
    float v[LANES];
    load_group(at, v);
    const int k = group_exponent(v, 6.0f * 0x1p-126f, MANTISSA_OF_6, 2,
                                 (i64)blockIdx.x * (K / GROUP) + group);
    const float scale = exp2_of(k), inverse = exp2_of(-k);
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        // The quotient of a tiny negative may underflow to -0; its sign still counts.
        const float value = e2m1_to_f32(f32_to_e2m1(fabsf(v[i]) * inverse)) * scale;
        at[32 * i] = v[i] != v[i] ? v[i] : v[i] < 0.0f ? -value : value;
    }
}

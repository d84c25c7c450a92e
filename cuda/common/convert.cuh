// Number formats: decode to float exactly, encode from float with one rounding.
//
// Only integer operations and exact float products, so both backends give the same bytes. None of
// this needs the toolkit's fp8 or bf16 headers.
#pragma once

#include "common/types.cuh"

// Bytes of a word, picked by the nibbles of the selector; with its top bit set a nibble gives eight
// copies of that byte's sign.
__device__ __forceinline__ u32 permute_bytes(u32 word, u32 selector) {
#ifdef DSV4_HOST
    return __byte_perm(word, 0, selector);
#else
    u32 bytes;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(bytes) : "r"(word), "r"(selector));
    return bytes;
#endif
}

// ---------------------------------------------------------------------------- bf16

__device__ __forceinline__ float bf16_to_f32(bf16 bits) { return __uint_as_float((u32)bits << 16); }

// The 8 bf16 of a 16-byte load; the low half of a word is the even element.
__device__ __forceinline__ void bf16x8_to_f32(uint4 raw, float (&value)[8]) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        value[2 * i] = __uint_as_float(words[i] << 16);
        value[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Nearest-even; NaN becomes the quiet NaN of the same sign, so that a payload in the low half
// cannot round to infinity.
__device__ __forceinline__ bf16 f32_to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 0x0040u);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Two floats as a pair of bf16, the first in the low half. NaN becomes a NaN; on the host that of
// f32_to_bf16.
__device__ __forceinline__ u32 f32x2_to_bf16x2(float first, float second) {
#ifdef DSV4_HOST
    return f32_to_bf16(first) | (u32)f32_to_bf16(second) << 16;
#else
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#endif
}

// a * b + c for two pairs of bf16, the first of a pair in the low half of its word. The device rounds
// once, the host twice: for results that are exact or infinite.
__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
#ifdef DSV4_HOST
    u32 pair = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const float value = fmaf(bf16_to_f32((bf16)(a >> shift)), bf16_to_f32((bf16)(b >> shift)),
                                 bf16_to_f32((bf16)(c >> shift)));
        pair |= (u32)f32_to_bf16(value) << shift;
    }
    return pair;
#else
    u32 pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
    return pair;
#endif
}

// ---------------------------------------------------------------------------- e4m3

// Sign, 4 exponent bits (bias 7), 3 mantissa bits. The magnitude bits moved to a float's exponent
// and mantissa read as value * 2^-120, subnormals included, so one exact product restores it. The
// two NaN codes never occur in checked weights; here they decode to NaN like the oracle.
__device__ __forceinline__ float e4m3_to_f32(u8 code) {
    const u32 magnitude = code & 0x7fu;
    const u32 sign = (u32)(code & 0x80u) << 24;
    if (magnitude == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
    return __uint_as_float(sign | (magnitude << 20)) * 0x1p120f;
}

// Four codes at once, the low byte first. Hardware converts two to f16, which holds every e4m3
// value exactly, NaN included: the same floats as above, for a quarter of the instructions.
__device__ __forceinline__ void e4m3x4_to_f32(u32 codes, float (&value)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 pair;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)(codes >> (8 * i))));
        asm("cvt.f32.f16 %0, %1;" : "=f"(value[i]) : "h"((u16)pair));
        asm("cvt.f32.f16 %0, %1;" : "=f"(value[i + 1]) : "h"((u16)(pair >> 16)));
    }
#else
    for (int i = 0; i < 4; ++i) value[i] = e4m3_to_f32((u8)(codes >> (8 * i)));
#endif
}

// The codes in bytes FIRST and FIRST + 1 of a word as two bf16, which hold every value; the low half is
// the first. For tensor cores. Hardware that converts codes at all goes by way of f16, which holds every
// value and NaN: four instructions, half of them on the pipe of floats.
//
// Elsewhere it takes six, and no table. A code's magnitude bits moved to those of a bf16 read as
// value * 2^-120, subnormals included. The second factor is chosen so that it takes 480, as which a NaN
// code reads, to infinity and 448 not; infinity times 0 is the NaN that the third line adds, and any
// other product is a zero of the same sign.
template <int FIRST>
__device__ __forceinline__ u32 e4m3x2_to_bf16x2(u32 codes) {
    static_assert(FIRST == 0 || FIRST == 2, "a word holds two pairs");
#ifdef DSV4_HOST_FAST
    return __float_as_uint(e4m3_to_f32((u8)(codes >> 8 * FIRST))) >> 16 |
           __float_as_uint(e4m3_to_f32((u8)(codes >> (8 * FIRST + 8))));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 halves;
    float first, second;
    if constexpr (FIRST == 0) {
        asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a; }"
            : "=r"(halves)
            : "r"(codes));
    } else {
        asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, b; }"
            : "=r"(halves)
            : "r"(codes));
    }
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(first), "=f"(second)
        : "r"(halves));
    return f32x2_to_bf16x2(first, second);
#else
    constexpr u32 SPREAD = FIRST ? 0xb3a2u : 0x9180u;  // each byte below 8 copies of its sign
    constexpr u32 NOTHING = 0x80008000u;               // -0, which a sum of -0 keeps
    const u32 bits = (permute_bytes(codes, SPREAD) << 4) & 0x87f087f0u;
    const u32 value = fma_bf16x2(bits, 0x7b807b80u, NOTHING);
    const u32 probe = fma_bf16x2(value, 0x7b0d7b0du, NOTHING);  // 1.1015625 * 2^119
    return fma_bf16x2(probe, 0u, value);
#endif
}

// Clamps to +-448 first, then nearest-even with subnormals (step 2^-9); keeps the sign of zero.
// NaN becomes the NaN code of its sign.
__device__ __forceinline__ u8 f32_to_e4m3(float value) {
    const u32 bits = __float_as_uint(value);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 pair;  // the second of two values is its low byte
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    // Hardware has one NaN.
    return value != value ? (u8)(bits >> 24 | 0x7fu) : (u8)pair;
#else
    const u8 sign = (u8)((bits >> 24) & 0x80u);
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // >= 448
    if (magnitude < 0x3c800000u) {                      // < 2^-6: subnormal, in steps of 2^-9
        // Adding 2^14 puts the step 2^-9 at the last mantissa bit: the sum rounds as we need.
        const float shifted = __uint_as_float(magnitude) + 16384.0f;
        return sign | (u8)(__float_as_uint(shifted) & 0xfu);
    }
    const u32 rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return sign | (u8)((rounded >> 20) - (120u << 3));
#endif
}

// ---------------------------------------------------------------------------- e8m0

// 2^(byte - 127). Byte 0 is 2^-127, a float subnormal; byte 255 is NaN.
__device__ __forceinline__ float e8m0_to_f32(u8 code) {
    if (code == 0xffu) return __uint_as_float(0x7fc00000u);
    return code == 0 ? __uint_as_float(0x00400000u) : __uint_as_float((u32)code << 23);
}

// ---------------------------------------------------------------------------- e2m1

// Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign, so code 8 is -0. The same trick as
// e4m3: two exponent bits (bias 1) and one mantissa bit moved into place are value * 2^-126.
__device__ __forceinline__ float e2m1_to_f32(u32 code) {
    const u32 sign = (code & 8u) << 28;
    return __uint_as_float(sign | ((code & 7u) << 22)) * 0x1p126f;
}

// Nearest value of the grid, ties to the even code, clamped to +-6. The sign follows value < 0, so
// a tiny negative becomes -0 and an input of -0 becomes +0.
__device__ __forceinline__ u32 f32_to_e2m1(float value) {
    const float v = fabsf(value);
    u32 code = 0;
    code += v > 0.25f;
    code += v >= 0.75f;
    code += v > 1.25f;
    code += v >= 1.75f;
    code += v > 2.5f;
    code += v >= 3.5f;
    code += v > 5.0f;
    return value < 0.0f ? code | 8u : code;
}

// ---------------------------------------------------------------------------- powers of two

// 2^k as a float, for k in [-149, 127].
__device__ __forceinline__ float exp2_of(int k) {
    return k >= -126 ? __uint_as_float((u32)(k + 127) << 23) : __uint_as_float(1u << (k + 149));
}

// The smallest k with value <= mantissa * 2^k, for a normal positive value and a mantissa in [1, 2)
// given as its 23 stored bits. Exact: it compares bits and never divides.
__device__ __forceinline__ int scale_exponent(float value, u32 mantissa_bits) {
    const u32 bits = __float_as_uint(value);
    return (int)(bits >> 23) - 127 + ((bits & 0x7fffffu) > mantissa_bits);
}

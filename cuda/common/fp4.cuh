// Codes of FP4 weights and FP8 rows of x as factors of exact products, for kernels that must give the
// same bytes.
//
// On tensor cores: weights are the tall operand of m16n8k16, and its eight columns, of which one row of
// x needs only one, serve to keep apart the groups that have their own weight scale: in 128 elements
// of K each group, 4 of 32 or 8 of 16, has a column of x of its own that is zero elsewhere. So raw
// codes are multiplied by raw codes, exactly, and a group is scaled when it is whole.
//
// Order of the sum. K is cut into chunks of 128. Lane quarter q (lane % 4) has elements 32 q .. 32 q +
// 31 of a chunk in one load, eight in a word. Products 2 j and 2 j + 1 of eight take elements 0, 1, 4, 5
// and 2, 3, 6, 7 of word j of every quarter, and the products of a group are chained from 0. A product
// of e2m1 and e4m3 has 6 significant bits, so nothing is rounded while a group's products span less
// than 24 bits. The group's sum times the activation's scale, a power of two and so exact, times the
// weight's scale is fused onto the sum of its column, chunks ascending: chunk c belongs to part c %
// PARTS. The columns of a part are added as 0 + 1, 2 + 3, 4 + 5, 6 + 7, and their sums by the xor
// butterfly; then the parts in ascending order; scale2, any float, is applied last. The order depends
// on K alone: a row of x, or a slot, gives the same bytes alone, in any batch, and through every one of
// these kernels.
//
// A code's bits moved into place are an f16 of value * 2^-14, subnormals included, and x carries 2^6:
// both exact, and what is left of the units goes into the activation's scale.
//
// Build constants: THREADS (before the include); K_CHUNKS (of K); X_ROWS (of x that are staged).
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

constexpr int CHUNK = 128;
constexpr int K = CHUNK * K_CHUNKS;
constexpr int LANE_CODES = 32;
constexpr int WORDS = LANE_CODES / 8;

// Both fit bf16, so two are made at once.
struct MxScales {
    static constexpr int GROUPS = 4;  // of a chunk, and columns of x
    // The power P of a byte, as which 0 reads zero and 255 infinity: 1.5 P - P / 2. With its highest
    // mantissa bit set 0 is the subnormal 2^-127 that it stands for, and 255 is NaN.
    static __device__ __forceinline__ u32 pair(u16 bytes) {
        const u32 powers = permute_bytes(bytes, 0x4140u) << 7;
        return fma_bf16x2(powers, 0xbf00bf00u, powers | 0x00400040u);
    }
};
struct NvScales {
    static constexpr int GROUPS = 8;
    static __device__ __forceinline__ u32 pair(u16 bytes) { return e4m3x2_to_bf16x2<0>(bytes); }
};

// The bits of `a` where the mask has ones, of `b` elsewhere. One instruction, which the compiler would take
// apart where a shift has left zeros.
__device__ __forceinline__ u32 blend(u32 a, u32 b, u32 mask) {
#ifdef DSV4_HOST
    return (a & mask) | (b & ~mask);
#else
    u32 bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(bits) : "r"(a), "r"(b), "r"(mask));
    return bits;
#endif
}

// The eight codes of a word as four pairs, in units of 2^14: elements 0 and 4, 1 and 5, 2 and 6, 3 and 7.
//
// Two shifted copies of the word bring a code's sign and its magnitude to where an f16 has them in its
// upper byte, four codes at once. Shifts to the left run beside the logic, which is what limits.
__device__ __forceinline__ void decode(u32 word, u32 (&pairs)[4]) {
    constexpr u32 SIGNS = 0x80808080u, KEPT = 0x8e008e00u;
    const u32 lower = blend(word << 4, word << 1, SIGNS);
    const u32 upper = blend(word, word >> 3, SIGNS);
    pairs[0] = lower << 8 & KEPT;
    pairs[1] = upper << 8 & KEPT;
    pairs[2] = lower & KEPT;
    pairs[3] = upper & KEPT;
}

__device__ __forceinline__ u32 word_of(uint4 words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Rows of x in shared memory: f16 of 2^6 times the codes, in the order of `decode`'s pairs, and scales
// times 2^8, which is what is left of the units in a product.
struct Inputs {
    u32* pairs;     // [X_ROWS][K / 2]
    float* scales;  // [X_ROWS][K_CHUNKS]
};

__device__ __forceinline__ u32 staged_code(u8 code) {
    const u32 bits = __float_as_uint(e4m3_to_f32(code) * 0x1p6f);
    const u32 magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    return magnitude == 0 ? sign : sign | (magnitude - 0x38000000u) >> 13;
}

// The two codes in the lower half of a word.
__device__ __forceinline__ u32 staged_pair(u32 codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 pair;
    asm("{\n\t"
        ".reg .b32 raw, factor;\n\t"
        "cvt.rn.f16x2.e4m3x2 raw, %1;\n\t"
        "mov.b32 factor, 0x54005400;\n\t"
        "mul.rn.f16x2 %0, raw, factor;\n\t"
        "}"
        : "=r"(pair)
        : "h"((u16)codes));
    return pair;
#else
    return staged_code((u8)codes) | staged_code((u8)(codes >> 8)) << 16;
#endif
}

// Half of eight codes, of which `first` holds the first four: elements 0 and 4, 1 and 5, or those two
// further on.
__device__ __forceinline__ uint2 staged_half(u32 first, u32 second, int half) {
    const u32 mixed = __byte_perm(first, second, half ? 0x7362u : 0x5140u);
    return make_uint2(staged_pair(mixed), staged_pair(mixed >> 16));
}

// The first codes and the first scale that a thread stages: asked for together, and where they may be,
// long before.
struct FirstOfX {
    uint2 codes;
    float scale;
};
__device__ __forceinline__ FirstOfX first_of_x(const u8* x, const float* x_scales, i64 first_row) {
    const int i = threadIdx.x;
    FirstOfX first = {make_uint2(0, 0), 0.0f};
    if (i < X_ROWS * (K / 8)) first.codes = *(const uint2*)(x + first_row * K + 8 * i);
    if (i < X_ROWS * K_CHUNKS) first.scale = x_scales[first_row * K_CHUNKS + i];
    return first;
}

// Stages rows of x; a barrier follows.
__device__ __forceinline__ void stage(const Inputs& in, const u8* x, const float* x_scales,
                                      i64 first_row, const FirstOfX& first) {
    const u8* const codes = x + first_row * K;
    const float* const scales = x_scales + first_row * K_CHUNKS;
    for (int begin = 0; begin < X_ROWS * (K / 8); begin += THREADS) {
        const int i = begin + threadIdx.x;
        if (i >= X_ROWS * (K / 8)) break;
        const uint2 own = begin == 0 ? first.codes : *(const uint2*)(codes + 8 * i);
        const uint2 low = staged_half(own.x, own.y, 0), high = staged_half(own.x, own.y, 1);
        store16(in.pairs + 4 * i, make_uint4(low.x, low.y, high.x, high.y));
    }
    for (int begin = 0; begin < X_ROWS * K_CHUNKS; begin += THREADS) {
        const int i = begin + threadIdx.x;
        if (i >= X_ROWS * K_CHUNKS) break;
        in.scales[i] = (begin == 0 ? first.scale : scales[i]) * 0x1p8f;
    }
}

// A query head of the indexer, from its product to what scores take: rotated, through the Hadamard
// transform, rounded to FP4. The operations of rope, hadamard and act_quant_fp4_inplace in their order,
// for a warp that has the head in shared memory.
#pragma once

#include "common/convert.cuh"
#include "common/math.cuh"
#include "common/reduce.cuh"

// What a lane turns of a head: (cos, sin) of pairs lane, lane + 32, ...; NaN outside the table.
template <int LENGTH>
struct Angles {
    float2 at[(LENGTH + 63) / 64];
    bool known;

    __device__ __forceinline__ void load(const float* table, i32 position, i32 R, i32 P) {
        known = position >= 0 && position < P;
#pragma unroll
        for (int i = 0; i < (LENGTH + 63) / 64; ++i) {
            const i32 pair = threadIdx.x % 32 + 32 * i;
            at[i] = make_float2(0.0f, 0.0f);
            if (!known || pair >= R / 2) continue;
            const float* const from = table + (i64)position * R + 2 * pair;
            at[i] = make_float2(from[0], from[1]);
        }
    }
};

// head: LENGTH floats in shared memory, a power of two from 32 to 1024, the last R lanes of which
// turn. Result: lane l has elements l * PER .. + PER - 1 in `v`.
template <int LENGTH>
__device__ __forceinline__ void finish_index_head(float* head, const Angles<LENGTH>& angles, i32 R,
                                                  float scale, float (&v)[LENGTH / 32]) {
    constexpr int PER = LENGTH / 32;
    constexpr u32 MANTISSA_OF_6 = 0x400000;  // 6 = 1.5 * 2^2
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < (LENGTH + 63) / 64; ++i) {
        const i32 pair = lane + 32 * i;
        if (pair >= R / 2) continue;
        float* const at = head + LENGTH - R + 2 * pair;
        const float c = angles.at[i].x, s = angles.at[i].y, a = at[0], b = at[1];
        at[0] = angles.known ? a * c - b * s : NAN_F32;
        at[1] = angles.known ? a * s + b * c : NAN_F32;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PER; ++i) v[i] = head[lane * PER + i];

#pragma unroll
    for (int h = 1; h < PER; h *= 2) {
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            if (i & h) continue;
            const float a = v[i], b = v[i + h];
            v[i] = a + b;
            v[i + h] = a - b;
        }
    }
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const float other = __shfl_xor_sync(FULL_WARP, v[i], h);
            v[i] = lane & h ? other - v[i] : v[i] + other;
        }
    }

    // 32 neighbouring elements share a scale; they lie in one lane or in several next to each other.
    constexpr int GROUPS = PER > 32 ? PER / 32 : 1, OF_GROUP = PER / GROUPS;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        float amax = 6.0f * 0x1p-126f;
#pragma unroll
        for (int i = 0; i < OF_GROUP; ++i) {
            float& value = v[g * OF_GROUP + i];
            value *= scale;
            const float magnitude = fabsf(value);
            amax = fmaxf(amax, magnitude <= MAX_F32 ? magnitude : 0.0f);
        }
#pragma unroll
        for (int h = 1; h < 32 / OF_GROUP; h *= 2)
            amax = fmaxf(amax, __shfl_xor_sync(FULL_WARP, amax, h));
        const int k = scale_exponent(amax, MANTISSA_OF_6) - 2;
        const float step = exp2_of(k), inverse = exp2_of(-k);
#pragma unroll
        for (int i = 0; i < OF_GROUP; ++i) {
            float& value = v[g * OF_GROUP + i];
            const float rounded = e2m1_to_f32(f32_to_e2m1(fabsf(value) * inverse)) * step;
            value = value != value ? value : value < 0.0f ? -rounded : rounded;
        }
    }
}

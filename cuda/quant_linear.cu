// quant_linear: y = x w^T for weights in blocks of 32 with a scale each, x as it is
//
//   quant_linear_q8   codes u8 [N, K], signed bytes
//   quant_linear_q4   codes u8 [N, K/2]; byte j of a block holds elements j (low) and j + 16 (high)
//   x f32 [T, K]    scales f16 [N, K/32]    y f32 [T, N]
//   y[t, n] = sum over blocks b of scale[n, b] * (sum over j of q[n, b, j] x[t, 32 b + j])
//   q is the signed byte, or the nibble less 8
//
// A warp takes one row of w and ROWS rows of x: lane l the blocks l, l + 32, ... in ascending order,
// each block's products one fmaf chain in ascending j, blocks one fmaf chain, then the xor
// butterfly. The order depends on K alone, so a row of x gives the same bytes in any batch. Codes
// and scales are exact in f32.
//
// Build constants: ROWS (1..8).
#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = 8;
constexpr int BLOCK = 32;

static_assert(ROWS >= 1 && ROWS <= 8, "a warp shares a row of w among at most 8 rows of x");

// Exact for every half, subnormal ones included; infinities and NaN stay what they are.
__device__ __forceinline__ float f16_to_f32(f16 bits) {
    const u32 sign = (u32)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest < 0x0400u) return __uint_as_float(sign | __float_as_uint((float)rest * 0x1p-24f));
    if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return __uint_as_float(sign | ((rest << 13) + 0x38000000u));
}

// The 32 numbers of one block.
template <bool NIBBLES>
__device__ __forceinline__ void decode(const u8* codes, float (&q)[BLOCK]) {
    constexpr int LOADS = NIBBLES ? 1 : 2;
#pragma unroll
    for (int load = 0; load < LOADS; ++load) {
        const uint4 raw = load16(codes + 16 * load);
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const u32 byte = words[i / 4] >> (8 * (i % 4)) & 255u;
            if (NIBBLES) {
                q[i] = (float)((i32)(byte & 15u) - 8);
                q[i + 16] = (float)((i32)(byte >> 4) - 8);
            } else {
                q[16 * load + i] = (float)((i32)(byte << 24) >> 24);
            }
        }
    }
}

template <bool NIBBLES>
__device__ __forceinline__ void product(const float* x, const u8* codes, const f16* scales,
                                        float* y, int T, int N, int K) {
    const int lane = threadIdx.x % 32, n = blockIdx.x * WARPS + threadIdx.x / 32;
    const int first = blockIdx.y * ROWS, blocks = K / BLOCK;
    if (n >= N) return;  // a whole warp; no barrier follows
    const u8* row = codes + (i64)n * (NIBBLES ? K / 2 : K);
    float sum[ROWS] = {};
    for (int b = lane; b < blocks; b += 32) {
        float q[BLOCK];
        decode<NIBBLES>(row + (i64)b * (NIBBLES ? 16 : 32), q);
        const float scale = f16_to_f32(scales[(i64)n * blocks + b]);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const float* part = x + (i64)min(first + m, T - 1) * K + (i64)b * BLOCK;
            float inner = 0.0f;
#pragma unroll
            for (int j = 0; j < BLOCK; ++j) inner = fmaf(q[j], part[j], inner);
            sum[m] = fmaf(scale, inner, sum[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
        const float total = warp_sum(sum[m]);
        if (lane == 0 && first + m < T) y[(i64)(first + m) * N + n] = total;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    quant_linear_q8(const float* x, const u8* codes, const f16* scales, float* y, i32 T, i32 N,
                    i32 K) {
    product<false>(x, codes, scales, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    quant_linear_q4(const float* x, const u8* codes, const f16* scales, float* y, i32 T, i32 N,
                    i32 K) {
    product<true>(x, codes, scales, y, T, N, K);
}

// linear_fp8: y[m, n] = sum over k of w[n, k] * x[m, k] with w[n, k] = codes[n, k] * scale, for 1
// to 8 rows of x
//
//   codes e4m3 [N, K]    scales f32 [ceil(N / 128), ceil(K / 128)], one for each 128 x 128 block
//   x bf16 [M, K], rows x_stride apart    y f32 [M, N], rows y_stride apart
//
// K is a multiple of 16; M is ROWS, fixed at build time. A weight is decoded to f32 with at most
// one rounding, none when its scale is a power of two. Sums are f32 in the order of
// common/gemv.cuh, which linear_bf16 shares: on the exactly dequantised weights it gives the same
// bytes. No rounding after the sum.
//
// Scales are values, never E8M0 bytes, and any float will do. A NaN code makes its row NaN.
#include "common/gemv.cuh"
#include "common/probe.cuh"

struct Fp8Weights {
    const u8* codes;
    const float* scales;
    i64 K;

    static constexpr int LOADS = 1;
    using Chunk = uint4;
    using Factor = float;

    __device__ __forceinline__ Chunk load(int row, int k) const {
        return load16_once(codes + row * K + k);
    }
    // 16 elements of a lane, and the rows of a warp, lie in one block of 128 x 128.
    __device__ __forceinline__ Factor factor(int row, int k) const {
        const i64 block = (row >> 7) * ((K + 127) >> 7) + (k >> 7);
        if (row % 128 == 0 && k % 128 == 0) PROBE("scale", block, scales[block]);
        return scales[block];
    }
    static __device__ __forceinline__ void decode(Chunk chunk, int half, Factor scale,
                                                  float (&value)[HALF]) {
        const u32 words[2] = {half ? chunk.z : chunk.x, half ? chunk.w : chunk.y};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float code[4];
            e4m3x4_to_f32(words[i], code);
#pragma unroll
            for (int j = 0; j < 4; ++j) value[4 * i + j] = code[j] * scale;
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    linear_fp8(const u8* __restrict__ codes, const float* __restrict__ scales,
               const bf16* __restrict__ x, float* __restrict__ y, int N, int K, i64 x_stride,
               i64 y_stride) {
    gemv(Fp8Weights{codes, scales, K}, x, y, N, K, x_stride, y_stride);
}

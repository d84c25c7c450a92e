// linear_bf16: y[m, n] = sum over k of w[n, k] * x[m, k], for 1 to 8 rows of x
//
//   w bf16 [N, K]    x bf16 [M, K], rows x_stride apart    y f32 [M, N], rows y_stride apart
//
// K is a multiple of 16; M is ROWS, fixed at build time. Products are exact inside fmaf, sums are
// f32 in the order of common/gemv.cuh, which linear_fp8 shares: same weights, same bytes. No
// rounding after the sum.
#include "common/gemv.cuh"

struct Bf16Weights {
    const bf16* w;
    i64 K;

    static constexpr int LOADS = 2;
    struct Chunk {
        uint4 half[LOADS];
    };
    struct Factor {};

    // The two loads of a lane share a 32-byte sector, so they go through L1, which then serves the
    // second.
    __device__ __forceinline__ Chunk load(int row, int k) const {
        const bf16* from = w + row * K + k;
        return {{load16(from), load16(from + 8)}};
    }
    __device__ __forceinline__ Factor factor(int, int) const { return {}; }
    static __device__ __forceinline__ void decode(const Chunk& chunk, int half, Factor,
                                                  float (&value)[HALF]) {
        bf16x8_to_f32(chunk.half[half], value);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    linear_bf16(const bf16* __restrict__ w, const bf16* __restrict__ x, float* __restrict__ y,
                int N, int K, i64 x_stride, i64 y_stride) {
    gemv(Bf16Weights{w, K}, x, y, N, K, x_stride, y_stride);
}

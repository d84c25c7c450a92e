// linear_bf16: y[m, n] = sum over k of w[n, k] * x[m, k], for 1 to 8 rows of x
//
//   linear_bf16           w bf16 [N, K]    x bf16 [M, K], rows x_stride apart
//                         y f32 [M, N], rows y_stride apart
//   linear_bf16_grouped   the same, but x [M, N / group * K]: rows 0 .. group - 1 of w take the first
//                         K columns of x, the next `group` rows the next K, and so on
//
// K is a multiple of 16; M is ROWS, fixed at build time. Products are exact, sums are f32 in the
// order of common/gemv.cuh, which linear_fp8 shares: same weights, same bytes. No rounding after the
// sum.
#include "common/gemv.cuh"

struct Bf16Weights {
    using Element = bf16;
    const bf16* elements;
    int rows;

    static constexpr bool SCALED = false;
    struct Raw {
        uint4 half[2];
    };

    // The two copies of a lane share a 32-byte sector, so they go through L1, which then serves the
    // second.
    template <int Apart>
    static __device__ __forceinline__ void copy(uint4* to, const bf16* from, bool there) {
        cp_async16_cached_or_zero(to, from, there);
        cp_async16_cached_or_zero(to + Apart, from + 8, there);
    }
    static __device__ __forceinline__ void decode(const Raw& raw, int j, u32& low, u32& high) {
        const uint4 half = raw.half[j / 2];
        low = j % 2 ? half.z : half.x;
        high = j % 2 ? half.w : half.y;
    }
    __device__ __forceinline__ const bf16* row_at(int row, int K) const {
        return elements + (i64)min(row, rows - 1) * K;
    }
    __device__ __forceinline__ int rows_down(int row, int n) const {
        return min(n, max(0, rows - 1 - row));
    }
};

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    linear_bf16(const bf16* __restrict__ w, const bf16* x, float* __restrict__ y, int N, int K,
                i64 x_stride, i64 y_stride) {
    gemv<false>(Bf16Weights{w, N}, x, y, N, K, N, x_stride, y_stride);
}

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    linear_bf16_grouped(const bf16* __restrict__ w, const bf16* x, float* __restrict__ y, int N,
                        int K, int group, i64 x_stride, i64 y_stride) {
    gemv<true>(Bf16Weights{w, N}, x, y, N, K, group, x_stride, y_stride);
}

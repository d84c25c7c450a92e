// island_dots: y[t,n] = sum over k of x[t,k] w[n,k], both sides true float32
//
//   island_dots            w f32 [N, K]     sums in f64
//   island_dots_f32        w f32 [N, K]     sums in f32
//   island_dots_bf16       w bf16 [N, K]    sums in f64
//   island_dots_bf16_f32   w bf16 [N, K]    sums in f32
//                          each: x f32 [T, K]    y f32 [T, N]
//
// The order of the sum is that of common/parts.cuh with PART_STEPS steps a part, which depends on N
// and K alone. So a row of x gives the same bytes alone, in any batch, and whatever shares the block
// with it, rows of w (what a "rowblock" kernel would be) included; and bf16 weights give the bytes
// of the same weights stored in f32. One rounding to f32 at the store when sums are f64. lm_head,
// markov and confidence add in the same order.
//
// A block has ROWS rows of x and the GROUPS * WARP_ROWS rows of w that its warps share out: a group
// of warps deals the parts of K among them, a warp walks WARP_ROWS rows of w past all rows of x, as
// common/dots.cuh says. Rows past the end repeat the last one and are not stored. Tiles of x lie on
// the grid's x, which has no limit that matters, so that neighbouring blocks share weights through
// the L2 cache.
//
// Build constants: ROWS (1..8), PART_STEPS, PARTS, WARP_ROWS, WARPS (a multiple of GROUPS), GROUPS,
// BATCH.
#include "common/dots.cuh"

constexpr int GROUP_WARPS = WARPS / GROUPS;
constexpr int BLOCK_ROWS = GROUPS * WARP_ROWS;

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(WARPS % GROUPS == 0 && WARPS <= 32, "every group needs the same number of warps");

template <class Sum, class Weights>
__device__ __forceinline__ void island(const float* x, const Weights& weights, float* y, int T,
                                       int N, int K) {
    __shared__ Sum partial[BLOCK_ROWS * ROWS][PARTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = warp / GROUP_WARPS;
    const int block_row = blockIdx.y * BLOCK_ROWS, first_row = block_row + group * WARP_ROWS;
    const int first_x = blockIdx.x * ROWS;
    F32Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) rows.at[m] = x + (i64)min(first_x + m, T - 1) * K;

    for (int part = warp % GROUP_WARPS; part < PARTS; part += GROUP_WARPS) {
        const int begin = part * PART_STEPS * STEP, end = min(K, begin + PART_STEPS * STEP);
        Sum sum[WARP_ROWS][ROWS] = {};
        // A group past the last row only takes part in the barrier.
        if (first_row < N) walk(weights, rows, first_row, N, K, begin, end, sum);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                const Sum total = warp_sum(sum[r][m]);
                const int n = first_row + r, t = first_x + m;
                if (lane != 0) continue;
                if (PARTS > 1)
                    partial[(group * WARP_ROWS + r) * ROWS + m][part] = total;
                else if (n < N && t < T)
                    y[(i64)t * N + n] = to_f32(total);
            }
    }
    if (PARTS == 1) return;
    __syncthreads();
    for (int i = warp; i < BLOCK_ROWS * ROWS; i += WARPS) {
        const Sum total = sum_of_parts(partial[i], PARTS, 1);
        const int n = block_row + i / ROWS, t = first_x + i % ROWS;
        if (lane == 0 && n < N && t < T) y[(i64)t * N + n] = to_f32(total);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots(const float* x, const float* w, float* y, i32 T, i32 N, i32 K) {
    island<double>(x, F32Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_f32(const float* x, const float* w, float* y, i32 T, i32 N, i32 K) {
    island<float>(x, F32Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_bf16(const float* x, const bf16* w, float* y, i32 T, i32 N, i32 K) {
    island<double>(x, Bf16Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_bf16_f32(const float* x, const bf16* w, float* y, i32 T, i32 N, i32 K) {
    island<float>(x, Bf16Weights{w}, y, T, N, K);
}

// The walk of a few rows of x past a weight matrix, shared by linear_bf16 and linear_fp8, so that
// equal weights give equal bytes whatever they are stored in.
//
//   y[m, n] = sum over k of w[n, k] * x[m, k]      w [N, K], x bf16 [ROWS, K], y f32 [ROWS, N]
//
// Order of the sum. K is cut into steps of 512: a lane takes 16 consecutive elements of a step, in
// ascending order, acc = fmaf(w, x, acc) in f32. Step j belongs to part j % SPLIT; a warp walks its
// part's steps in ascending order, folds its lanes by the xor butterfly, and the SPLIT parts are
// added in ascending order. SPLIT depends on N and K alone: never on ROWS, on timing, or on how the
// rows of w are shared out, so a row of x gives the same bytes whatever runs beside it.
//
// A warp walks WARP_ROWS consecutive rows of w at once, so that x is converted once for all of
// them, and issues the 16-byte loads of BATCH steps before it uses the first. Rows past N repeat
// the last one and are not stored. More rows of x mean more arithmetic for each load and more sums
// in registers, so BATCH and MIN_BLOCKS shrink with ROWS; neither has a part in the order.
//
// Build constants: ROWS (1..8), SPLIT, WARP_ROWS (1, 2 or 4), WARPS (a multiple of SPLIT).
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/reduce.cuh"

constexpr int LANE_ELEMENTS = 16;
constexpr int STEP = 32 * LANE_ELEMENTS;
constexpr int HALF = 8;                        // elements of x in a 16-byte load
constexpr int MIN_BLOCKS = ROWS <= 2 ? 2 : 1;  // on an SM; no build may spill
constexpr int GROUPS = WARPS / SPLIT;
constexpr int SUMS = WARP_ROWS * ROWS;

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(128 % WARP_ROWS == 0, "a warp's rows must share one row of scales");
static_assert(WARPS % SPLIT == 0 && WARPS <= 32, "every part of K needs a warp in each group");
static_assert(SUMS <= 32, "a lane stores at most one sum; lower WARP_ROWS");

// Adds one step's 16 elements to every sum, by halves: half the rows' weights are decoded once, and
// each half of x serves all of them.
template <class Weights>
__device__ __forceinline__ void gemv_step(const typename Weights::Chunk (&chunk)[WARP_ROWS],
                                          typename Weights::Factor factor, const bf16* x,
                                          i64 x_stride, float (&sum)[WARP_ROWS][ROWS]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float w[WARP_ROWS][HALF];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) Weights::decode(chunk[r], half, factor, w[r]);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            float v[HALF];
            bf16x8_to_f32(load16(x + m * x_stride + half * HALF), v);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
                for (int i = 0; i < HALF; ++i) sum[r][m] = fmaf(w[r][i], v[i], sum[r][m]);
        }
    }
}

// Weights: Chunk holds 16 raw elements in LOADS loads, Factor what a lane's chunks of one step
// share; load(row, k), factor(row, k) and decode(chunk, half, factor, out) read them.
template <class Weights>
__device__ __forceinline__ void gemv(const Weights& weights, const bf16* x, float* y, int N, int K,
                                     i64 x_stride, i64 y_stride) {
    constexpr int BATCH = ROWS <= 2 ? 2 / Weights::LOADS : 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = (blockIdx.x * GROUPS + warp / SPLIT) * WARP_ROWS;
    // A warp past the last row only takes part in the barrier.
    const int end = first_row < N ? K : 0;
    float sum[WARP_ROWS][ROWS] = {};
    for (int k = (warp % SPLIT) * STEP + lane * LANE_ELEMENTS; k < end; k += BATCH * SPLIT * STEP) {
        typename Weights::Chunk chunk[BATCH][WARP_ROWS];
        typename Weights::Factor factor[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int here = k + b * SPLIT * STEP;
            if (here >= K) break;
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                chunk[b][r] = weights.load(first_row + r < N ? first_row + r : N - 1, here);
            factor[b] = weights.factor(first_row, here);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int here = k + b * SPLIT * STEP;
            if (here < K) gemv_step<Weights>(chunk[b], factor[b], x + here, x_stride, sum);
        }
    }

    // Lane r * ROWS + m keeps the sum of weight row r and row m of x.
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const float total = warp_sum(sum[r][m]);
            if (lane == r * ROWS + m) mine = total;
        }
    if constexpr (SPLIT == 1) {
        const int row = first_row + lane / ROWS;
        if (lane < SUMS && row < N) y[(lane % ROWS) * y_stride + row] = mine;
    } else {
        __shared__ float partial[WARPS][SUMS];
        if (lane < SUMS) partial[warp][lane] = mine;
        __syncthreads();
        const int group = threadIdx.x / SUMS, i = threadIdx.x % SUMS;
        const int row = (blockIdx.x * GROUPS + group) * WARP_ROWS + i / ROWS;
        if (group >= GROUPS || row >= N) return;
        float total = partial[group * SPLIT][i];
#pragma unroll
        for (int part = 1; part < SPLIT; ++part) total += partial[group * SPLIT + part][i];
        y[(i % ROWS) * y_stride + row] = total;
    }
}

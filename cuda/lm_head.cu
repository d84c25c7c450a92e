// lm_head: logits of the vocabulary, or only the largest of every row and where it is
//
//   lm_head          y[t, v] = sum over d of x[t, d] w[v, d], sums in f64
//   lm_head_f32      the same, sums in f32
//   lm_head_argmax   ids[t] = the argmax of row t of lm_head_f32, logit[t] = its value
//
//   x f32 [T, D]    w bf16 [V, D]    y f32 [T, V]    ids i32 [T]    logit f32 [T]
//   keys i64 [T] and ticket i32 [1], both zero before a launch and zero again after it
//
// The order of the sum is that of common/parts.cuh with all of a row in one part: a warp walks the
// row in steps of 256, then folds its lanes. It depends on D alone, so a row of x gives the same
// bytes alone, in any batch, and whatever else its block has to do.
//
// A block has ROWS rows of x and WARPS * WARP_ROWS neighbouring rows of w; neighbouring blocks share
// weights through the L2 cache. Rows past the end repeat the last one and are not stored.
//
// lm_head_argmax writes no logits. A logit and its place become one integer that is larger for a
// larger logit, then for a lower place; each block offers the largest of its own by an atomic
// maximum, which no order can change. The block that takes the last ticket turns the keys into ids
// and logits and zeroes them: which block that is does not show, and nobody waits. +0 equals -0, NaN
// loses to every number, a row of NaN gives id 0 and logit NaN: the rule of the argmax kernel.
//
// Build constants: ROWS (1..8), WARP_ROWS, BATCH.
#include "common/dots.cuh"

constexpr int WARPS = 8;
constexpr int SUMS = WARP_ROWS * ROWS;
constexpr int MIN_BLOCKS = ROWS <= 6 ? 2 : 1;  // on an SM; more rows need more than 128 registers

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(SUMS <= 32, "a lane keeps at most one sum; lower WARP_ROWS");

__device__ __forceinline__ int first_row_of_warp() {
    return (blockIdx.y * WARPS + threadIdx.x / 32) * WARP_ROWS;
}

// Lane r * ROWS + m gets the sum of row r of this warp's rows of w and row m of the block's rows of x.
template <class Sum>
__device__ __forceinline__ Sum dots(const float* x, const bf16* w, int T, int V, int D) {
    F32Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) rows.at[m] = x + (i64)min((int)blockIdx.x * ROWS + m, T - 1) * D;
    Sum sum[WARP_ROWS][ROWS] = {};
    if (first_row_of_warp() < V) walk(Bf16Weights{w}, rows, first_row_of_warp(), V, D, 0, D, sum);
    Sum mine = 0;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const Sum total = warp_sum(sum[r][m]);
            if (threadIdx.x % 32 == r * ROWS + m) mine = total;
        }
    return mine;
}

template <class Sum>
__device__ __forceinline__ void logits(const float* x, const bf16* w, float* y, int T, int V,
                                       int D) {
    const float mine = to_f32(dots<Sum>(x, w, T, V, D));
    const int lane = threadIdx.x % 32;
    const int t = blockIdx.x * ROWS + lane % ROWS, v = first_row_of_warp() + lane / ROWS;
    if (lane < SUMS && t < T && v < V) y[(i64)t * V + v] = mine;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    lm_head(const float* x, const bf16* w, float* y, i32 T, i32 V, i32 D) {
    logits<double>(x, w, y, T, V, D);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    lm_head_f32(const float* x, const bf16* w, float* y, i32 T, i32 V, i32 D) {
    logits<float>(x, w, y, T, V, D);
}

// Positive, larger for a larger logit, NaN below all, then for a lower place.
__device__ __forceinline__ u64 key_of(float logit, int place) {
    const u32 bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
    const u32 order = logit != logit ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | (0xffffffffu - (u32)place);
}
__device__ __forceinline__ int place_of(u64 key) { return (int)(0xffffffffu - (u32)key); }
__device__ __forceinline__ float logit_of(u64 key) {
    const u32 order = (u32)(key >> 32);
    if (order == 0) return NAN_F32;
    return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    lm_head_argmax(const float* x, const bf16* w, i64* keys, i32* ticket, i32* ids, float* logit,
                   i32 T, i32 V, i32 D) {
    __shared__ u64 offered[WARPS][32];
    __shared__ bool last;
    const float mine = to_f32(dots<float>(x, w, T, V, D));
    const int lane = threadIdx.x % 32, v = first_row_of_warp() + lane / ROWS;
    offered[threadIdx.x / 32][lane] = lane < SUMS && v < V ? key_of(mine, v) : 0;
    __syncthreads();

    const int t = blockIdx.x * ROWS + threadIdx.x;
    if (threadIdx.x < ROWS && t < T) {
        u64 best = 0;
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                best = max(best, offered[warp][r * ROWS + threadIdx.x]);
        atomicMax((u64*)keys + t, best);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == (int)(gridDim.x * gridDim.y) - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;

    for (int row = threadIdx.x; row < T; row += 32 * WARPS) {
        const u64 key = atomicExch((u64*)keys + row, 0);
        ids[row] = place_of(key);
        logit[row] = logit_of(key);
    }
    if (threadIdx.x == 0) atomicExch(ticket, 0);
}

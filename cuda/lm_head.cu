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
// A warp takes tiles of WARP_ROWS neighbouring rows of w past ROWS rows of x, and its block WARPS such
// tiles at a time from a span of its own. The loads of BATCH steps are always on their way: with each
// step that is added its successor a batch later begins, in the next tile too, so that no sum waits for
// memory before the span's end. Rows past the end repeat the last one and are not stored.
//
// lm_head_argmax writes no logits. A logit and its place become one integer that is larger for a
// larger logit, then for a lower place; a lane keeps the largest of its own, and a block offers the
// largest of its lanes' by an atomic maximum, which no order can change. It has as many blocks as the
// card holds at once. The block that takes the last ticket turns the keys into ids and logits and
// zeroes them: which block that is does not show, and nobody waits. +0 equals -0, NaN loses to every
// number, a row of NaN gives id 0 and logit NaN: the rule of the argmax kernel.
//
// Build constants: ROWS (1..8), WARP_ROWS, BATCH, WHOLE (whether D is whole batches of steps).
#include "common/dots.cuh"

constexpr int WARPS = 8;
constexpr int MIN_BLOCKS = ROWS <= 4 ? 2 : 1;  // on an SM; more rows need more than 128 registers

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");

// The weights that a warp has on their way: those of a batch of steps of a tile.
struct Batch {
    const bf16* w;
    int V, D;
    uint4 chunk[BATCH][WARP_ROWS];

    // Step b of the batch whose first step has this lane's element k.
    __device__ __forceinline__ void fetch(int tile, int k, int b) {
        if (!WHOLE && k + b * STEP >= D) return;
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
            chunk[b][r] = load16_here(w + (i64)min(tile * WARP_ROWS + r, V - 1) * D + k + b * STEP);
    }
};

// Gives `keep` the sums of every tile of this warp, and the tile.
template <class Sum, class Keep>
__device__ __forceinline__ void dots(const float* x, const bf16* w, int T, int V, int D,
                                     const Keep& keep) {
    F32Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) rows.at[m] = x + (i64)min((int)blockIdx.x * ROWS + m, T - 1) * D;
    // The first blocks have one more round of tiles when they cannot be dealt evenly.
    const int tiles = (V + WARP_ROWS - 1) / WARP_ROWS, rounds = (tiles + WARPS - 1) / WARPS;
    const int each = rounds / (int)gridDim.y, left = rounds % (int)gridDim.y, span = blockIdx.y;
    const int first = span * each + min(span, left);
    const int end = min((first + each + (span < left)) * WARPS, tiles);
    const int mine = threadIdx.x % 32 * LANE_ELEMENTS;
    int tile = first * WARPS + threadIdx.x / 32;
    if (tile >= end) return;

    Batch batch = {w, V, D, {}};
#pragma unroll
    for (int b = 0; b < BATCH; ++b) batch.fetch(tile, mine, b);
    for (; tile < end; tile += WARPS) {
        Sum sum[WARP_ROWS][ROWS] = {};
        for (int begin = 0; begin < D; begin += BATCH * STEP) {
            const bool last = begin + BATCH * STEP >= D;
            const int next = last ? tile + WARPS : tile;
            const int k = begin + mine, next_k = last ? mine : k + BATCH * STEP;
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (WHOLE || k + b * STEP < D)
                    add_step<Bf16Weights>(batch.chunk[b], rows, k + b * STEP, sum);
                if (next < end) batch.fetch(next, next_k, b);
                __syncwarp();
            }
        }
        keep(tile, warp_sums(sum));
    }
}

template <class Sum>
__device__ __forceinline__ void logits(const float* x, const bf16* w, float* y, int T, int V,
                                       int D) {
    dots<Sum>(x, w, T, V, D, [=](int tile, const LaneSum<Sum>& mine) {
        const int t = blockIdx.x * ROWS + mine.m, v = tile * WARP_ROWS + mine.r;
        if (mine.keeper && t < T && v < V) y[(i64)t * V + v] = to_f32(mine.sum);
    });
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
    u64 own = 0;
    dots<float>(x, w, T, V, D, [&](int tile, const LaneSum<float>& mine) {
        const int v = tile * WARP_ROWS + mine.r;
        if (mine.keeper && v < V) own = max(own, key_of(to_f32(mine.sum), v));
    });
    offered[threadIdx.x / 32][threadIdx.x % 32] = own;
    __syncthreads();

    const int t = blockIdx.x * ROWS + threadIdx.x;
    if (threadIdx.x < ROWS && t < T) {
        u64 best = 0;
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                best = max(best, offered[warp][keeper_of(r, threadIdx.x)]);
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

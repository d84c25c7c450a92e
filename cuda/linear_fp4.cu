// linear_fp4: y[t,n] = sum over k of w[n,k] * a[t,k], FP4 weights and FP8 activations
//
//   x e4m3 [T, K] and x_scales f32 [T, K/128]    a = x * its group's scale (from act_quant_fp8)
//   mx   codes e2m1x2 [N, K/2], scales ue8m0 [N, K/32]                      w = code * scale
//   nv   codes e2m1x2 [N, K/2], scales e4m3 [N, K/16], scale2 f32 [1]       w = code * scale * scale2
//
//   linear_fp4_mx, linear_fp4_nv                     one matrix, any T: y f32 [T, N]
//   linear_fp4_mx_selected, linear_fp4_nv_selected   codes, scales and scale2 of E experts in one
//        slab [E, ...], ids i32 [S]: slot s takes matrix ids[s] and activation row s / group; y f32
//        [S, N]
//
// Order of the sum. K is cut into steps of 1024: a lane takes 32 consecutive codes of a step, 16
// bytes. Inside a group of equal weight scale (32 or 16 codes) raw products are added in ascending
// order by fmaf from 0; a product of e2m1 and e4m3 has 6 significant bits, so only the additions
// round, and none does while a group's products span less than 24 bits. The group's sum times the
// activation's scale, a power of two and so exact, times the weight's scale is fused onto the lane's
// sum, groups ascending. The warp folds its lanes by the xor butterfly; scale2, any float, is applied
// last. The order depends on K alone: a row of x, or a slot, gives the same bytes alone, in any
// batch, and through either kind of kernel.
//
// A code's bits moved into place are a float of value * 2^-126, as in common/convert.cuh. That factor
// stays in through the group's sum and is taken out of it at once: every product is a multiple of
// 2^-10, so in units of 2^-126 nothing falls below the smallest subnormal, and every rounding is the
// same. On the CPU, where subnormals are slow, it is taken out of each code unless FOLDED is 1.
//
// A warp walks WARP_ROWS rows of w at once and issues the loads of BATCH steps before it uses the
// first. Rows past the end repeat the last one and are not stored. Rows of x and slots lie on the
// grid's x, which has no limit that matters. ids live on the device, so they are checked here: an id
// that is no expert gives a row of NaN and reads no weights.
//
// x_scales are at least 2^-22, as the quantiser makes them. A NaN code or scale makes its row NaN.
//
// Build constants: ROWS (rows of x in a block, 1..8), WARP_ROWS, BATCH; FOLDED if asked for.
#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/reduce.cuh"

constexpr int WARPS = 4;
constexpr int LANE_CODES = 32;
constexpr int STEP = 32 * LANE_CODES;
constexpr int WORD_CODES = 8;
constexpr int X_GROUP = 128;
constexpr int SUMS = WARP_ROWS * ROWS;

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(SUMS <= 32, "a lane stores at most one sum; lower WARP_ROWS");

#ifndef FOLDED
#ifdef DSV4_HOST
#define FOLDED 0
#else
#define FOLDED 1
#endif
#endif
constexpr float CODE_UNIT = FOLDED ? 0x1p126f : 1.0f;

struct Chunk {
    uint4 codes;
    u32 scales;  // those of its 32 codes: one byte, or two
};

// The eight codes of a word, the lowest nibble first, in units of 1 / CODE_UNIT.
__device__ __forceinline__ void decode(u32 word, float (&value)[WORD_CODES]) {
#pragma unroll
    for (int i = 0; i < WORD_CODES; ++i) {
        // Shifting the sign in from the left fills the exponent's upper bits, which the mask clears.
        const i32 moved = (i32)(word << (28 - 4 * i)) >> 6;
        value[i] = __uint_as_float((u32)moved & 0x81c00000u);
        if (!FOLDED) value[i] *= 0x1p126f;
    }
}

struct MxWeights {
    static constexpr int GROUP = 32;
    const u8 *codes, *scales;
    __device__ __forceinline__ Chunk load(i64 at) const {
        return {load16_once(codes + at / 2), scales[at / 32]};
    }
    static __device__ __forceinline__ float scale(u32 bits, int) { return e8m0_to_f32((u8)bits); }
};

struct NvWeights {
    static constexpr int GROUP = 16;
    const u8 *codes, *scales;
    __device__ __forceinline__ Chunk load(i64 at) const {
        return {load16_once(codes + at / 2), *(const u16*)(scales + at / 16)};
    }
    static __device__ __forceinline__ float scale(u32 bits, int group) {
        return e4m3_to_f32((u8)(bits >> 8 * group));
    }
};

// Adds a lane's 32 elements of one step to every sum.
template <class Weights, int Rows>
__device__ __forceinline__ void add_step(const Chunk (&chunk)[WARP_ROWS], const u8* x,
                                         const float* x_scales, const i64 (&row)[Rows], int k,
                                         float (&sum)[WARP_ROWS][Rows]) {
    constexpr int WORDS = Weights::GROUP / WORD_CODES;
#pragma unroll
    for (int group = 0; group < LANE_CODES / Weights::GROUP; ++group) {
        float products[WARP_ROWS][Rows] = {};
#pragma unroll
        for (int word = group * WORDS; word < (group + 1) * WORDS; ++word) {
            float w[WARP_ROWS][WORD_CODES];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) {
                const uint4 c = chunk[r].codes;
                decode(word == 0 ? c.x : word == 1 ? c.y : word == 2 ? c.z : c.w, w[r]);
            }
#pragma unroll
            for (int m = 0; m < Rows; ++m) {
                const uint2 raw = *(const uint2*)(x + row[m] + k + word * WORD_CODES);
                float v[2][WORD_CODES / 2];
                e4m3x4_to_f32(raw.x, v[0]);
                e4m3x4_to_f32(raw.y, v[1]);
#pragma unroll
                for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
                    for (int i = 0; i < WORD_CODES; ++i)
                        products[r][m] = fmaf(w[r][i], v[i / 4][i % 4], products[r][m]);
            }
        }
#pragma unroll
        for (int m = 0; m < Rows; ++m) {
            const float x_scale = x_scales[(row[m] + k) / X_GROUP];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                sum[r][m] = fmaf(products[r][m] * CODE_UNIT * x_scale,
                                 Weights::scale(chunk[r].scales, group), sum[r][m]);
        }
    }
}

// One warp: WARP_ROWS rows of w from first_row on, past the rows of x that start at row[]. Lane
// r * Rows + m returns the sum of weight row r and row m.
template <class Weights, int Rows>
__device__ __forceinline__ float walk(const Weights& weights, const u8* x, const float* x_scales,
                                      const i64 (&row)[Rows], int first_row, int N, int K) {
    const int lane = threadIdx.x % 32;
    float sum[WARP_ROWS][Rows] = {};
    for (int k = lane * LANE_CODES; k < K; k += BATCH * STEP) {
        Chunk chunk[BATCH][WARP_ROWS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // Past the end the loads repeat the first ones, which is cheaper than not loading.
            const int here = k + b * STEP < K ? k + b * STEP : k;
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                chunk[b][r] = weights.load((i64)min(first_row + r, N - 1) * K + here);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int here = k + b * STEP;
            if (here < K) add_step<Weights>(chunk[b], x, x_scales, row, here, sum);
        }
    }
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
        for (int m = 0; m < Rows; ++m) {
            const float total = warp_sum(sum[r][m]);
            if (lane == r * Rows + m) mine = total;
        }
    return mine;
}

__device__ __forceinline__ int first_row_of_warp() {
    return (blockIdx.y * WARPS + threadIdx.x / 32) * WARP_ROWS;
}

template <class Weights>
__device__ __forceinline__ float one_matrix_sum(const Weights& weights, const u8* x,
                                                const float* x_scales, int T, int N, int K) {
    i64 row[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; ++m) row[m] = (i64)min((int)blockIdx.x * ROWS + m, T - 1) * K;
    return walk(weights, x, x_scales, row, first_row_of_warp(), N, K);
}

// This lane's sum to its place, if it holds one.
__device__ __forceinline__ void store_sum(float sum, float* y, int T, int N) {
    const int lane = threadIdx.x % 32;
    const int n = first_row_of_warp() + lane / ROWS, t = blockIdx.x * ROWS + lane % ROWS;
    if (lane < SUMS && n < N && t < T) y[(i64)t * N + n] = sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_fp4_mx(const u8* codes, const u8* scales, const u8* x, const float* x_scales, float* y,
                  i32 T, i32 N, i32 K) {
    if (first_row_of_warp() >= N) return;
    store_sum(one_matrix_sum(MxWeights{codes, scales}, x, x_scales, T, N, K), y, T, N);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_fp4_nv(const u8* codes, const u8* scales, const float* scale2, const u8* x,
                  const float* x_scales, float* y, i32 T, i32 N, i32 K) {
    if (first_row_of_warp() >= N) return;
    const float sum = one_matrix_sum(NvWeights{codes, scales}, x, x_scales, T, N, K);
    store_sum(sum * scale2[0], y, T, N);
}

// The sum of slot blockIdx.x under the matrix of its expert; lane r holds that of weight row r.
template <class Weights>
__device__ __forceinline__ float selected_sum(const u8* codes, const u8* scales, i32 id,
                                              const u8* x, const float* x_scales, int N, int K,
                                              int group) {
    const i64 first = (i64)id * N * K;
    const i64 row[1] = {(i64)(blockIdx.x / group) * K};
    return walk(Weights{codes + first / 2, scales + first / Weights::GROUP}, x, x_scales, row,
                first_row_of_warp(), N, K);
}

__device__ __forceinline__ void store_slot(float sum, float* y, int N) {
    const int lane = threadIdx.x % 32, n = first_row_of_warp() + lane;
    if (lane < WARP_ROWS && n < N) y[(i64)blockIdx.x * N + n] = sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_fp4_mx_selected(const u8* codes, const u8* scales, const i32* ids, const u8* x,
                           const float* x_scales, float* y, i32 E, i32 N, i32 K, i32 group) {
    if (first_row_of_warp() >= N) return;
    const i32 id = ids[blockIdx.x];
    float sum = NAN_F32;
    if (id >= 0 && id < E)
        sum = selected_sum<MxWeights>(codes, scales, id, x, x_scales, N, K, group);
    store_slot(sum, y, N);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_fp4_nv_selected(const u8* codes, const u8* scales, const float* scale2, const i32* ids,
                           const u8* x, const float* x_scales, float* y, i32 E, i32 N, i32 K,
                           i32 group) {
    if (first_row_of_warp() >= N) return;
    const i32 id = ids[blockIdx.x];
    float sum = NAN_F32;
    if (id >= 0 && id < E)
        sum = selected_sum<NvWeights>(codes, scales, id, x, x_scales, N, K, group) * scale2[id];
    store_slot(sum, y, N);
}

// markov: logits biased by the token before them, in place
//
//   markov_bias       logits[t, v] += sum over r of w2[v, r] w1[ids[t], r], the sum in f64
//   markov_bias_f32   the same, the sum in f32
//
//   w1 bf16 [V, R]    w2 bf16 [V, R]    ids i32 [T]    logits f32 [T, V]
//
// The sum has the order of common/parts.cuh with all of a row in one part, rounds to f32 once, and
// then one f32 addition joins it to the logit: the bytes of gathering row ids[t], of its products
// with w2, and of adding them. They depend neither on T nor on which rows of w2 share a warp or a
// block, so there is no row-blocked variant.
//
// ids are read on the device, so that a chain of draft tokens never visits the host. An id that is no
// row of w1 makes the logits of its row NaN and reads nothing.
//
// A block has ROWS rows of logits and the WARPS * WARP_ROWS neighbouring rows of w2.
//
// Build constants: ROWS (1..8), WARP_ROWS, BATCH.
#include "common/dots.cuh"

constexpr int WARPS = 8;
constexpr int SUMS = WARP_ROWS * ROWS;

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows");
static_assert(SUMS <= 32, "a lane keeps at most one sum; lower WARP_ROWS");

template <class Sum>
__device__ __forceinline__ void bias(const bf16* w1, const bf16* w2, const i32* ids, float* logits,
                                     int T, int V, int R) {
    const int first_row = (blockIdx.y * WARPS + threadIdx.x / 32) * WARP_ROWS;
    const int first_t = blockIdx.x * ROWS;
    if (first_row >= V) return;
    Bf16Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
        const i32 id = ids[min(first_t + m, T - 1)];
        rows.at[m] = w1 + (id >= 0 && id < V ? (i64)id * R : 0);
    }
    Sum sum[WARP_ROWS][ROWS] = {};
    walk(Bf16Weights{w2}, rows, first_row, V, R, 0, R, sum);

    // Lane r * ROWS + m keeps the sum of weight row r and logits row m.
    Sum mine = 0;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const Sum total = warp_sum(sum[r][m]);
            if (lane == r * ROWS + m) mine = total;
        }
    const int t = first_t + lane % ROWS, v = first_row + lane / ROWS;
    if (lane >= SUMS || t >= T || v >= V) return;
    const i32 id = ids[t];
    float* const at = logits + (i64)t * V + v;
    *at = id >= 0 && id < V ? to_f32(*at + to_f32(mine)) : NAN_F32;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    markov_bias(const bf16* w1, const bf16* w2, const i32* ids, float* logits, i32 T, i32 V,
                i32 R) {
    bias<double>(w1, w2, ids, logits, T, V, R);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    markov_bias_f32(const bf16* w1, const bf16* w2, const i32* ids, float* logits, i32 T, i32 V,
                    i32 R) {
    bias<float>(w1, w2, ids, logits, T, V, R);
}

// router_gate: the products of a gate, and the experts that they choose, in one launch; beside them
// the coefficients of a hyper-connection that hyper_step_open left open
//
//   router_gate        x f32 [T, D]    w bf16 [E, D]    bias f32 [E]
//   router_gate_hash   x, w            table i64 [V, A]    tokens i32 [T]
//                      each: ids i32 [T, A]    weights f32 [T, A]    order i32 [T, A]: the bytes of
//                      island_dots_bf16_f32 and then router or router_hash
//   mix f32 [T, C], scaled    hyper_scale f32 [3]    hyper_base f32 [C]    post f32 [T, M]
//   comb f32 [T, M, M]: the bytes of hyper_split
//   scores f32 [T, E]: scratch    ticket i32 [1]: 0 before a launch, and 0 after it
//
// Block 0 balances, a warp a token, while the others multiply: balancing is a long chain of divisions
// that nothing else in this launch waits for. Every other block has WARP_ROWS rows of w, which it asks
// for before it waits for the kernel before; a warp has a part of D, as in island_dots. The block scores
// its own sums, and the one that takes the last ticket chooses, a warp a token: all scores are there
// then, whoever it is. It passes on: what the experts multiply was there before it began.
//
// Build constants: STREAMS, ITERATIONS; ROWS (T, 1..8), WARP_ROWS, WARPS, PART_STEPS, PARTS, BATCH (1)
// as in island_dots; PER_LANE, experts of a lane: ceil(E / 32), at most 32.
#include "common/balancing.cuh"
#include "common/dots.cuh"
#include "common/overlap.cuh"
#include "common/routing.cuh"

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(PER_LANE >= 1 && PER_LANE <= 32, "a warp keeps the ranks of all experts");

constexpr int SUMS = WARP_ROWS * ROWS;
constexpr int THREADS = 32 * WARPS;
// Room for a block of the kernel before or behind. Rows that share weights need their registers.
constexpr int MIN_BLOCKS = ROWS == 1 && THREADS >= 64 ? 1024 / THREADS : 1;
// With one token nothing is left to share out once the parts are there: one warp ends the block's work,
// and no barrier stands between its scores and its ticket.
constexpr bool ALONE = ROWS == 1;
// Beside more sums than these a lane's biases would not fit the registers; they wait in L2.
constexpr bool EARLY_BIASES = SUMS <= 20;

// The scores of this block's experts, to memory.
__device__ __forceinline__ void score_rows(const float* x, const bf16* w, float* scores, int E,
                                           int D) {
    __shared__ float partial[SUMS][PARTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = ((int)blockIdx.x - 1) * WARP_ROWS;
    const Bf16Weights weights{w};
    F32Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) rows.at[m] = x + (i64)m * D;
    const int begin = warp * PART_STEPS * STEP, k = begin + lane * LANE_ELEMENTS;
    Bf16Weights::Chunk first[WARP_ROWS] = {};
    if (k < D)
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
            first[r] = weights.load((i64)min(first_row + r, E - 1) * D + k);
    wait_for_previous();
    let_next_start();
    for (int part = warp; part < PARTS; part += WARPS) {
        int from = part * PART_STEPS * STEP;
        const int end = min(D, from + PART_STEPS * STEP);
        float sum[WARP_ROWS][ROWS] = {};
        if (part == warp) {
            if (k < D) add_step<Bf16Weights>(first, rows, k, sum);
            from += STEP;
        }
        walk(weights, rows, first_row, E, D, from, end, sum);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                const float total = warp_sum(sum[r][m]);
                if (lane == 0) partial[r * ROWS + m][part] = total;
            }
    }
    __syncthreads();
    if (ALONE && warp > 0) return;
    float raw = 0.0f;
    const int step = ALONE ? 1 : WARPS;
    for (int i = warp; i < SUMS; i += step) {
        const float total = sum_of_parts(partial[i], PARTS, 1);
        if (lane == i / step) raw = to_f32(total);
    }
    const int i = lane * step + warp, e = first_row + i / ROWS, t = i % ROWS;
    if (i < SUMS && e < E) scores[t * E + e] = score_of(raw);
}

// Whether this is the block that ends last; then all scores are there.
__device__ __forceinline__ bool is_last(i32* ticket) {
    const u32 tickets = gridDim.x - 2;  // the largest: block 0 takes none
    if constexpr (ALONE) {
        if (threadIdx.x >= 32) return false;
        __threadfence();
        __syncwarp();
        u32 taken = 0;
        if (threadIdx.x == 0) taken = atomicInc((u32*)ticket, tickets);
        taken = __shfl_sync(FULL_WARP, taken, 0);
        __threadfence();
        return taken == tickets;
    }
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // Behind the barrier one thread's fence covers what the whole block wrote.
        __threadfence();
        last = atomicInc((u32*)ticket, tickets) == tickets;
        __threadfence();
    }
    __syncthreads();
    return last;
}

__device__ __forceinline__ void load_biases(const float* bias, i32 E, float (&biases)[PER_LANE]) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (i32 i = 0; i < PER_LANE; ++i) biases[i] = 32 * i + lane < E ? bias[32 * i + lane] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    router_gate(const float* x, const bf16* w, const float* bias, const float* mix,
                const float* hyper_scale, const float* hyper_base, i32* ids, float* weights,
                i32* order, float* post, float* comb, float* scores, i32* ticket, i32 E, i32 A,
                i32 D, float scale, float eps) {
    if (blockIdx.x == 0) {
        const Open open = {mix, hyper_scale, hyper_base, post, comb, eps};
        open.prefetch();
        wait_for_previous();
        let_next_start();
        return open.close(ROWS, WARPS);
    }
    const i32 lane = threadIdx.x % 32;
    float biases[PER_LANE];
    if (EARLY_BIASES)
        load_biases(bias, E, biases);
    else if (threadIdx.x < PER_LANE)
        prefetch_l2(bias + 32 * threadIdx.x);
    score_rows(x, w, scores, E, D);
    if (!is_last(ticket)) return;
    if (!EARLY_BIASES) load_biases(bias, E, biases);

    // What other blocks wrote is read past L1, which may hold older bytes.
    for (i32 t = threadIdx.x / 32; t < ROWS; t += WARPS) {
        const float* const own = scores + t * E;
        float score[PER_LANE];
        i32 rank[PER_LANE];
#pragma unroll
        for (i32 i = 0; i < PER_LANE; ++i) {
            const i32 e = 32 * i + lane;
            score[i] = e < E ? __ldcg(own + e) : 0.0f;
            rank[i] = e < E ? rank_of(score[i] + biases[i]) : -2147483647 - 1;
        }
        i32 id = 0;
        float chosen = 0.0f;
        for (i32 a = 0; a < A; ++a) {
            const i32 best = take_largest(rank);
            float held = score[0];
#pragma unroll
            for (i32 i = 1; i < PER_LANE; ++i)
                if (best / 32 == i) held = score[i];
            held = __shfl_sync(FULL_WARP, held, best % 32);
            if (a == lane) id = best, chosen = held;
        }
        finish(id, chosen, scale, t, A, ids, weights, order);
    }
}

// The expert that the table names for a token's slot, or -1.
__device__ __forceinline__ i32 named(const i64* table, i32 token, i32 slot, i32 E, i32 A, i32 V) {
    if (slot >= A || token < 0 || token >= V) return -1;
    const i64 stored = table[(i64)token * A + slot];
    return stored >= 0 && stored < E ? (i32)stored : -1;
}

// Brings the tokens' rows of the table near, which is too large to be there. By one warp.
__device__ __forceinline__ void prefetch_named(const i64* table, const i32* tokens, i32 A, i32 V) {
    const i32 t = threadIdx.x % 32;
    if (t >= ROWS || tokens[t] < 0 || tokens[t] >= V) return;
    const i64* const row = table + (i64)tokens[t] * A;
    prefetch_l2(row);
    prefetch_l2(row + A - 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    router_gate_hash(const float* x, const bf16* w, const i64* table, const i32* tokens,
                     const float* mix, const float* hyper_scale, const float* hyper_base, i32* ids,
                     float* weights, i32* order, float* post, float* comb, float* scores,
                     i32* ticket, i32 E, i32 A, i32 D, i32 V, float scale, float eps) {
    if (blockIdx.x == 0) {
        const Open open = {mix, hyper_scale, hyper_base, post, comb, eps};
        open.prefetch();
        wait_for_previous();
        let_next_start();
        // The last warp: the first ones balance.
        if (threadIdx.x / 32 == WARPS - 1) prefetch_named(table, tokens, A, V);
        return open.close(ROWS, WARPS);
    }
    score_rows(x, w, scores, E, D);
    if (!is_last(ticket)) return;
    const i32 lane = threadIdx.x % 32;
    for (i32 t = threadIdx.x / 32; t < ROWS; t += WARPS) {
        const i32 id = named(table, tokens[t], lane, E, A, V);
        const float score = id < 0 ? NAN_F32 : __ldcg(scores + t * E + id);
        finish(id, score, scale, t, A, ids, weights, order);
    }
}

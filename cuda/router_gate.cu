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
// A block has WARP_ROWS rows of w, which it asks for before it waits for the kernel before; a warp has a
// part of D, as in island_dots. Balancing is a long chain of divisions that nothing else in this launch
// waits for. It passes on: what the experts multiply was there before it began.
//
// One token (CLUSTER): a cluster has all rows of w, and a warp 256 elements of each. Blocks have one warp
// more. That of the first block chooses, from scores that all blocks send there; that of the last one
// balances. On cards without clusters of that size (CLUSTERED 0) scores go through memory, and the block
// that takes the last ticket chooses: all are there then, whoever it is. The bytes are the same.
//
// Several, or one with too many weights for a cluster (CLUSTER 0): block 0 balances, a warp a token, while
// the others multiply. The one that takes the last ticket chooses, a warp a token.
//
// Build constants: STREAMS, ITERATIONS; ROWS (T, 1..8), WARP_ROWS, WARPS, PART_STEPS, PARTS, BATCH (1)
// as in island_dots; PER_LANE, experts of a lane: ceil(E / 32), at most 32; CLUSTER (at most 16).
#include "common/balancing.cuh"
#include "common/cluster.cuh"
#include "common/dots.cuh"
#include "common/overlap.cuh"
#include "common/some_warps.cuh"
#include "common/tickets.cuh"

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(PER_LANE >= 1 && PER_LANE <= 32, "a warp keeps the ranks of all experts");
static_assert(!CLUSTER || (ROWS == 1 && WARP_ROWS <= 16), "a lane has its weights of all rows");
static_assert(!CLUSTER || (PARTS == WARPS && PART_STEPS == 1), "a warp has a step of 256 elements");

#ifndef CLUSTERED
#define CLUSTERED (HAS_CLUSTERS && CLUSTER > 1)
#endif
#if CLUSTERED
#define BLOCKS_OF_A_TOKEN CLUSTER_OF(CLUSTER)
#else
#define BLOCKS_OF_A_TOKEN
#endif

constexpr bool TOGETHER = CLUSTER > 0;  // all blocks multiply, and have one more warp
constexpr int SUMS = WARP_ROWS * ROWS;
constexpr int MULTIPLIERS = 32 * WARPS;
constexpr int THREADS = MULTIPLIERS + 32 * TOGETHER;
// With one token nothing is left to share out once the parts are there: one warp ends the block's work,
// and no barrier stands between its scores and its ticket.
constexpr bool ALONE = ROWS == 1;
// Room for a block of the kernel before or behind. Rows that share weights need their registers.
constexpr int MIN_BLOCKS = ALONE && !TOGETHER && THREADS >= 64 ? 1024 / THREADS : 1;
// Beside a cluster's weights, or more sums than these, a lane's biases would not fit the registers; they
// wait in L2. A warp that only chooses has room.
#define EARLY_BIASES (CLUSTER > 1 ? CLUSTERED : WARP_ROWS * ROWS <= 20)
#include "common/choosing.cuh"

struct Gate {
    const float* x;
    const bf16* w;
    float* scores;
    i32* ticket;
    i32 E, D;
};

// ------------------------------------------------------------------------ scores

// The first element of D that a lane multiplies.
__device__ __forceinline__ int first_element() {
    return (int)threadIdx.x / 32 * PART_STEPS * STEP + (int)threadIdx.x % 32 * LANE_ELEMENTS;
}

// A lane's weights there, of every row.
__device__ __forceinline__ void load_first(const Gate& gate, int first_row,
                                           uint4 (&first)[WARP_ROWS]) {
    const int k = first_element();
    if (k >= gate.D) return;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r)
        first[r] = Bf16Weights{gate.w}.load((i64)min(first_row + r, gate.E - 1) * gate.D + k);
}

__device__ __forceinline__ F32Rows rows_of(const Gate& gate) {
    F32Rows rows;
#pragma unroll
    for (int m = 0; m < ROWS; ++m) rows.at[m] = gate.x + (i64)m * gate.D;
    return rows;
}

// Whether this is the block that ends last, of so many; then all scores are there.
__device__ __forceinline__ bool is_last(i32* ticket, u32 blocks) {
    if constexpr (ALONE) {
        if (threadIdx.x >= 32) return false;
        i32 last = 0;
        __syncwarp();
        if (threadIdx.x == 0) last = take_last_ticket(ticket, blocks);
        __syncwarp();
        return __shfl_sync(FULL_WARP, last, 0) != 0;
    } else {
        return is_last_block(ticket, blocks);
    }
}

// ------------------------------------------------------------------------ one token

struct OneRoom {
    // Rows of whole vectors, and not all in the same banks.
    alignas(16) float partial[WARP_ROWS][(PARTS + 3) / 4 * 4 + 4];
    Scores scores;
    Inbox inbox;
};

__device__ __forceinline__ OneRoom& one_room() {
    __shared__ OneRoom room;
    return room;
}

template <class Choice>
__device__ __forceinline__ void route_one(Choice choice, const Gate& gate, const Open& open,
                                          const Chosen& out) {
    auto& [partial, scores, inbox] = one_room();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rank = CLUSTERED ? cluster_rank() : (int)blockIdx.x, first_row = rank * WARP_ROWS;
    const bool multiplies = warp < WARPS;
    const bool chooses = CLUSTERED ? rank == 0 && !multiplies : warp == 0;
    if (CLUSTERED) {
        if (threadIdx.x == 0) open_inbox(inbox, rank == 0 ? 4 * gate.E : 0);
        enter_cluster();
    }
    uint4 first[WARP_ROWS] = {};
    if (multiplies) load_first(gate, first_row, first);
    if (CLUSTERED) await_cluster();
    if (multiplies) {
        if (chooses) choice.begin(gate.E);
        wait_for_previous();
        let_next_start();
        const int k = first_element();
        float sum[WARP_ROWS][ROWS] = {};
        if (k < gate.D) add_step<Bf16Weights>(first, rows_of(gate), k, sum);
        const LaneSum<float> total = warp_sums_by_type(sum);
        if (total.keeper) partial[total.r][warp] = total.sum;
    } else {
        if (chooses) choice.begin(gate.E);
        open.prefetch();
        wait_for_previous();
        let_next_start();
        if (chooses) choice.see(0, gate.E, out.A);
        if (rank == CLUSTER - 1) open.close_comb(0);
        if (rank == CLUSTER / 2) open.close_post(0);
    }
    sync_first<MULTIPLIERS>();
    const int e = first_row + lane;
    if (warp == 0 && lane < WARP_ROWS && e < gate.E) {
        const float score = score_of(to_f32(folded_parts<PARTS>(partial[lane])));
        if (CLUSTERED) send(inbox, &score_in(scores, e), 0, score);
        gate.scores[e] = score;
    }
    if (CLUSTERED) {
        await_mail(inbox, chooses);
        if (chooses) choice.choose(scores, 0, gate.E, out);
    } else if (chooses && is_last(gate.ticket, CLUSTER)) {
        choose_from_memory(choice, gate.scores, scores, 0, gate.E, out);
    }
}

// ------------------------------------------------------------------------ several

// The scores of this block's experts, to memory.
__device__ __forceinline__ void score_rows(const Gate& gate) {
    __shared__ float partial[SUMS][PARTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = ((int)blockIdx.x - 1) * WARP_ROWS;
    uint4 first[WARP_ROWS] = {};
    load_first(gate, first_row, first);
    wait_for_previous();
    let_next_start();
    for (int part = warp; part < PARTS; part += WARPS) {
        int from = part * PART_STEPS * STEP;
        const int end = min(gate.D, from + PART_STEPS * STEP), k = first_element();
        float sum[WARP_ROWS][ROWS] = {};
        if (part == warp) {
            if (k < gate.D) add_step<Bf16Weights>(first, rows_of(gate), k, sum);
            from += STEP;
        }
        walk(Bf16Weights{gate.w}, rows_of(gate), first_row, gate.E, gate.D, from, end, sum);
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
    if (i < SUMS && e < gate.E) gate.scores[t * gate.E + e] = score_of(raw);
}

__device__ __forceinline__ Scores& room_of(int t) {
    __shared__ Scores rooms[ROWS];
    return rooms[t];
}

template <class Choice>
__device__ __forceinline__ void route_several(Choice choice, const Gate& gate, const Open& open,
                                              const Chosen& out) {
    if (blockIdx.x == 0) {
        open.prefetch();
        wait_for_previous();
        let_next_start();
        // The last warp: the first ones balance.
        if (threadIdx.x / 32 == WARPS - 1) choice.prefetch(out.A);
        return open.close(ROWS, WARPS);
    }
    choice.begin(gate.E);
    score_rows(gate);
    if (!is_last(gate.ticket, gridDim.x - 1)) return;
    for (i32 t = threadIdx.x / 32; t < ROWS; t += WARPS)
        choose_from_memory(choice, gate.scores, room_of(t), t, gate.E, out);
}

// ------------------------------------------------------------------------ kernels

template <class Choice>
__device__ __forceinline__ void route(const Choice& choice, const Gate& gate, const Open& open,
                                      const Chosen& out) {
    if constexpr (TOGETHER)
        route_one(choice, gate, open, out);
    else
        route_several(choice, gate, open, out);
}

extern "C" __global__ void BLOCKS_OF_A_TOKEN __launch_bounds__(THREADS, MIN_BLOCKS)
    router_gate(const float* x, const bf16* w, const float* bias, const float* mix,
                const float* hyper_scale, const float* hyper_base, i32* ids, float* weights,
                i32* order, float* post, float* comb, float* scores, i32* ticket, i32 E, i32 A,
                i32 D, float scale, float eps) {
    route(Largest{bias}, {x, w, scores, ticket, E, D},
          {mix, hyper_scale, hyper_base, post, comb, eps}, {ids, weights, order, A, scale});
}

extern "C" __global__ void BLOCKS_OF_A_TOKEN __launch_bounds__(THREADS, MIN_BLOCKS)
    router_gate_hash(const float* x, const bf16* w, const i64* table, const i32* tokens,
                     const float* mix, const float* hyper_scale, const float* hyper_base, i32* ids,
                     float* weights, i32* order, float* post, float* comb, float* scores,
                     i32* ticket, i32 E, i32 A, i32 D, i32 V, float scale, float eps) {
    route(Named{table, tokens, V, -1}, {x, w, scores, ticket, E, D},
          {mix, hyper_scale, hyper_base, post, comb, eps}, {ids, weights, order, A, scale});
}

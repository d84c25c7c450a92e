// The walk of the shared expert's FP8 rows past bf16 rows of x, through the ring of
// common/fp4_walk.cuh and ahead of the chosen experts: it depends on no routing.
//
// Sums are those of common/gemv.cuh: groups of 128 in two chunks, group j in part j % DENSE_PARTS, parts
// ascending. A warp has every WARPS-th part.
//
// Build constants: those of common/fp4_walk.cuh, TOKENS (1..8, rows of x), DENSE_PARTS.
#pragma once

#include "common/fp4_walk.cuh"

constexpr int DENSE_CHUNK = 64;
constexpr int DENSE_PRODUCTS = DENSE_CHUNK / 16;

static_assert(TOKENS >= 1 && TOKENS <= 8, "a product has eight columns, one a token");
static_assert(DENSE_PARTS <= 16, "more parts than the order of the shared expert's sum has");

struct Dense {
    const u8* codes;
    const float* scales;
};

// Every part's sums of the block's rows, for every token.
__shared__ float dense_partial[DENSE_PARTS][ROWS][TOKENS];

// The groups of a warp: those of its parts, one part after the other.
struct DenseGroup {
    int part, group;
    __device__ __forceinline__ bool inside(int K) const {
        return part < DENSE_PARTS && group < K / CHUNK;
    }
    __device__ __forceinline__ void advance(int K) {
        group += DENSE_PARTS;
        if (WARPS >= DENSE_PARTS || group < K / CHUNK) return;
        part += WARPS;
        group = part;
    }
    // This lane's first column of 64.
    __device__ __forceinline__ int column(int half) const {
        return group * CHUNK + half * DENSE_CHUNK + threadIdx.x % 4 * 16;
    }
};

// A warp's way through its groups, in pieces like those of common/fp4_walk.cuh: two tiles of eight rows
// in half a group.
template <int Slabs>
struct DenseWalk {
    const Dense (&slab)[Slabs];
    const Rows& rows;
    const bf16* x;     // [TOKENS, K]
    int K, row;        // the block's first row
    DenseGroup ahead;  // of the next piece to ask for
    int half, pieces;  // of it; to come

    __device__ __forceinline__ void begin(bool any) {
        const int warp = threadIdx.x / 32;
        ahead = {warp, warp};
        half = pieces = 0;
        for (DenseGroup group = ahead; any && group.inside(K); group.advance(K))
            pieces += 2 * PAIRS;
    }
    template <int Pair, class Scales>
    __device__ __forceinline__ void fetch(const Ring<Scales>& ring) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            cp_async16(ring.place(i), slab[Pair % Slabs].codes +
                                          (u64)rows.codes[2 * Pair + i] * 32 + ahead.column(half));
        --pieces;
        if (Pair != PAIRS - 1) return;
        half ^= 1;
        if (half == 0) ahead.advance(K);
    }
    // One token's row is read so late that it waits in shared memory, in `room` of K elements: a warp
    // brings there what it will read.
    __device__ __forceinline__ void stage_x(bf16* room) {
        if (TOKENS > 1) return;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (DenseGroup group = {warp, warp}; group.inside(K);) {
            DenseGroup next = group;
            next.advance(K);
            const DenseGroup own = lane < 16 ? group : next;
            const int at = own.group * CHUNK + lane % 16 * 8;
            if (own.inside(K)) store16(room + at, load16(x + at));
            next.advance(K);
            group = next;
        }
        __syncwarp();
        x = room;
    }
    // A lane's share of a token's row, for one half of a group; zeros where there is no token.
    __device__ __forceinline__ void load_x(const DenseGroup& group, int at, uint4 (&own)[2]) const {
        const int token = threadIdx.x % 32 / 4;
        own[0] = own[1] = make_uint4(0, 0, 0, 0);
        if (token >= TOKENS) return;
        const bf16* const from = x + (i64)token * K + group.column(at);
        own[0] = load16(from);
        own[1] = load16(from + 8);
    }
};

// Asks for as many pieces as a new ring has places for; returns how many.
template <class Scales, int Slabs>
__device__ __forceinline__ int fill_early(DenseWalk<Slabs>& walk, Ring<Scales>& ring) {
    const int count = min(RING, walk.pieces);
#pragma unroll
    for (int i = 0; i < RING; ++i) {
        if (i >= count) break;
        ring.stage = i;
        if (i % PAIRS == 0) walk.template fetch<0>(ring);
        if (i % PAIRS != 0) walk.template fetch<PAIRS - 1>(ring);
        cp_async_commit();
    }
    return count;
}

// Two tiles' share of 64 columns, on to their sums.
__device__ __forceinline__ void multiply_dense(uint4 upper, uint4 lower, const uint4 (&x)[2],
                                               float (&sum)[4]) {
#pragma unroll
    for (int j = 0; j < DENSE_PRODUCTS; ++j) {
        const u32 words[2] = {word_of(upper, j), word_of(lower, j)};
        const u32 a[4] = {e4m3x2_to_bf16x2<0>(words[0]), e4m3x2_to_bf16x2<0>(words[1]),
                          e4m3x2_to_bf16x2<2>(words[0]), e4m3x2_to_bf16x2<2>(words[1])};
        const uint4 four = x[j / 2];
        const u32 b[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
        mma_bf16_16816(sum, a, b);
    }
}

// The next piece of the ring, on to its sums. In its place goes one of the shared expert, or behind
// them of a chosen one.
template <int Pair, class Scales, int Slabs, int Routed>
__device__ __forceinline__ void take_dense(DenseWalk<Slabs>& walk, Walk<Scales, Routed>& behind,
                                           Ring<Scales>& ring, const uint4 (&x)[2],
                                           float (&sum)[4]) {
    ring.wait();
    const uint4 upper = *ring.place(0), lower = *ring.place(1);
    if (walk.pieces > 0) {
        walk.template fetch<(Pair + RING) % PAIRS>(ring);
        cp_async_commit();
    } else {
        behind.template refill<Pair>(ring);
    }
    ring.next();
    multiply_dense(upper, lower, x, sum);
}

// All of a warp's parts into `dense_partial`.
template <class Scales, int Slabs, int Routed>
__device__ __forceinline__ void finish_dense(DenseWalk<Slabs>& walk, Walk<Scales, Routed>& behind,
                                             Ring<Scales>& ring) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float total[PAIRS][4] = {};
    DenseGroup here = {warp, warp};
#pragma unroll 1
    while (here.inside(walk.K)) {
        float scale[Slabs], sum[PAIRS][4] = {};
#pragma unroll
        for (int i = 0; i < Slabs; ++i)
            scale[i] = walk.slab[i].scales[(i64)(walk.row / CHUNK) * (walk.K / CHUNK) + here.group];
        DenseGroup next = here;
        next.advance(walk.K);
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            uint4 own[2];
            walk.load_x(here, half, own);
            take_dense<0>(walk, behind, ring, own, sum[0]);
            if constexpr (PAIRS == 2) take_dense<1>(walk, behind, ring, own, sum[PAIRS - 1]);
        }
        const bool whole = next.part != here.part || !next.inside(walk.K);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& mine = total[pair][i];
                mine = fmaf(sum[pair][i], scale[pair % Slabs], mine);
                // Products hold rows lane / 4 and lane / 4 + 8 of two tiles, for two tokens.
                const int at = 16 * pair + 8 * (i / 2) + lane / 4, token = 2 * (lane % 4) + i % 2;
                if (whole && token < TOKENS) dense_partial[here.part][at][token] = mine;
                if (whole) mine = 0.0f;
            }
        here = next;
    }
}

__device__ __forceinline__ float dense_sum(int row, int token) {
    float sum = dense_partial[0][row][token];
#pragma unroll
    for (int part = 1; part < DENSE_PARTS; ++part) sum += dense_partial[part][row][token];
    return sum;
}

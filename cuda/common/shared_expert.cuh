// The walk of the shared expert's FP8 rows past bf16 rows of x, through the ring of
// common/fp4_walk.cuh and ahead of the chosen experts: it depends on no routing.
//
// Sums are those of common/gemv.cuh: groups of 128 in two chunks, group j in part j % DENSE_PARTS, parts
// ascending. A warp has every WARPS-th part, and of a part one pair of tiles after the other. A piece is
// a group of a pair.
//
// Every warp takes DENSE_PIECES places of the ring, so that all know at which one the chosen experts
// begin; one that has fewer pieces leaves the last ones empty.
//
// Build constants: those of common/fp4_walk.cuh, TOKENS (1..8, rows of x), DENSE_PARTS.
#pragma once

#include "common/fp4_walk.cuh"

constexpr int DENSE_CHUNK = 64;
constexpr int DENSE_PRODUCTS = DENSE_CHUNK / 16;
constexpr int WARP_PARTS = (DENSE_PARTS + WARPS - 1) / WARPS;
constexpr int DENSE_PIECES = WARP_PARTS * PAIRS * ((K_CHUNKS + DENSE_PARTS - 1) / DENSE_PARTS);
constexpr int FIRST_ROUTED = DENSE_PIECES % RING;  // place

static_assert(TOKENS >= 1 && TOKENS <= 8, "a product has eight columns, one a token");
static_assert(DENSE_PARTS <= 16, "more parts than the order of the shared expert's sum has");

struct Dense {
    const u8* codes;
    const float* scales;
};

// Every part's sums of the block's rows, for every token.
__shared__ float dense_partial[DENSE_PARTS][ROWS][TOKENS];

// A part of a warp and a pair of tiles.
struct DenseRun {
    int part, pair;

    static __device__ __forceinline__ DenseRun first() { return {(int)threadIdx.x / 32, 0}; }
    __device__ __forceinline__ bool inside() const { return part < DENSE_PARTS; }
    __device__ __forceinline__ void advance() {
        if (++pair < PAIRS) return;
        pair = 0;
        part += WARPS;
    }
    __device__ __forceinline__ int groups() const {
        return (K_CHUNKS - part + DENSE_PARTS - 1) / DENSE_PARTS;
    }
};

// A warp's way through its runs, and behind them through the chosen experts.
template <int Slabs, int Routed>
struct DenseWalk {
    const Dense (&slab)[Slabs];
    const Rows& rows;
    Walk<Routed>& behind;
    DenseRun run;  // to be asked for next
    int empty;     // places to come without a piece
    bool entered;  // the chosen experts

    __device__ __forceinline__ void begin() {
        run = DenseRun::first();
        empty = DENSE_PIECES;
        for (DenseRun own = run; own.inside(); own.advance()) empty -= own.groups();
        entered = false;
    }
    __device__ __forceinline__ void next(Stream& stream) {
        if (run.inside()) {
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
                const u32 row = PAIRS == 2 && run.pair ? rows.of_tile[TILES - 2 + j % 2]
                                                       : rows.of_tile[j % 2];
                stream.from[j] = (Slabs == 2 && run.pair ? slab[Slabs - 1] : slab[0]).codes +
                                 (u64)row * LANE_CODES + j / 2 * DENSE_CHUNK + threadIdx.x % 4 * 16;
            }
            stream.at = run.part * (CHUNK / 16);
            stream.step = DENSE_PARTS * (CHUNK / 16);
            stream.left = run.groups() * PIECE_CHUNKS;
            run.advance();
            return;
        }
        if (--empty >= 0) return;
        if (!entered) behind.enter(stream);
        entered = true;
        behind.next(stream);
    }
};

// Asks for as many pieces as find room before the chosen experts are known.
template <int Slabs, int Routed>
__device__ __forceinline__ void fill_early(DenseWalk<Slabs, Routed>& walk, Stream& stream,
                                           Ring& ring) {
    walk.begin();
    stream.left = 0;
#pragma unroll
    for (int i = 0; i < RING && i < DENSE_PIECES; ++i) ask(walk, stream, ring[i]);
}

// One token's row is read so late that it waits in shared memory, in `room` of K elements: a warp
// brings there what it will read.
__device__ __forceinline__ void stage_wide(bf16* room, const bf16* x) {
    const int lane = threadIdx.x % 32;
    for (int part = threadIdx.x / 32; part < DENSE_PARTS; part += WARPS)
        for (int group = part + lane / 16 * DENSE_PARTS; group < K_CHUNKS;
             group += 2 * DENSE_PARTS) {
            const int at = group * CHUNK + lane % 16 * 8;
            store16(room + at, load16(x + at));
        }
    __syncwarp();
}

// Two tiles' share of a group, from 0. x: of this lane, 64 columns apart.
__device__ __forceinline__ void multiply_dense(const uint4 (&codes)[LOADS], const bf16* x,
                                               bool has_x, float (&sum)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < DENSE_PRODUCTS; ++j) {
            const u32 words[2] = {word_of(codes[2 * half], j), word_of(codes[2 * half + 1], j)};
            const u32 a[4] = {e4m3x2_to_bf16x2<0>(words[0]), e4m3x2_to_bf16x2<0>(words[1]),
                              e4m3x2_to_bf16x2<2>(words[0]), e4m3x2_to_bf16x2<2>(words[1])};
            uint4 four = make_uint4(0, 0, 0, 0);
            if (has_x) four = load16(x + half * DENSE_CHUNK + j / 2 * 8);
            const u32 b[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
            mma_bf16_16816(sum, a, b);
        }
}

// All of a warp's parts into `dense_partial`. x: [TOKENS, K]; one token's is in shared memory. row: the
// block's first.
template <int Slabs, int Routed>
__device__ __forceinline__ void finish_dense(DenseWalk<Slabs, Routed>& walk, Stream& stream,
                                             Ring& ring, const bf16* x, int row) {
    constexpr bool EVEN = K_CHUNKS % DENSE_PARTS == 0 && DENSE_PARTS % WARPS == 0;
    const int lane = threadIdx.x % 32, token = lane / 4;
    // One token's x: lanes that have none read zeros.
    const bool has_x = TOKENS == 1 || token < TOKENS;
    const bool own = TOKENS > 1 || token == 0;
    const int step = own ? DENSE_PARTS * CHUNK : 0;
    const bf16 *at = nullptr, *const first_x = x + (i64)token * K + lane % 4 * 16;
    const float* scale = nullptr;
    float total[4] = {};
    DenseRun run = DenseRun::first();
    int left = 0;
#pragma unroll
    for (int i = DENSE_PIECES; i < RING; ++i) ask(walk, stream, ring[i]);
#pragma unroll 1
    for (int done = 0; done < DENSE_PIECES; done += RING)
#pragma unroll
        for (int i = 0; i < RING; ++i) {
            if (done + i >= DENSE_PIECES) break;
            if (EVEN || run.inside()) {
                if (left == 0) {
                    left = run.groups();
                    at = own ? first_x + run.part * CHUNK : (const bf16*)no_x();
                    scale = (Slabs == 2 && run.pair ? walk.slab[Slabs - 1] : walk.slab[0]).scales +
                            (i64)(row / CHUNK) * K_CHUNKS + run.part;
                }
                const float factor = *scale;
                float sum[4] = {};
                multiply_dense(ring[i], at, has_x, sum);
                at += step;
                scale += DENSE_PARTS;
                --left;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    total[e] = fmaf(sum[e], factor, total[e]);
                    // Products hold rows lane / 4 and lane / 4 + 8 of two tiles, for two tokens.
                    const int n = 16 * run.pair + 8 * (e / 2) + lane / 4;
                    const int m = 2 * (lane % 4) + e % 2;
                    if (left == 0 && m < TOKENS) dense_partial[run.part][n][m] = total[e];
                    if (left == 0) total[e] = 0.0f;
                }
                if (left == 0) run.advance();
            }
            ask(walk, stream, ring[i]);
        }
}

__device__ __forceinline__ float dense_sum(int row, int token) {
    float sum = dense_partial[0][row][token];
#pragma unroll
    for (int part = 1; part < DENSE_PARTS; ++part) sum += dense_partial[part][row][token];
    return sum;
}

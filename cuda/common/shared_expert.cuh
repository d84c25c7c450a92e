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
constexpr int PART_GROUPS = (K_CHUNKS + DENSE_PARTS - 1) / DENSE_PARTS;
constexpr int DENSE_PIECES = WARP_PARTS * PAIRS * PART_GROUPS;
constexpr int FIRST_ROUTED = DENSE_PIECES % RING;                       // place
constexpr int ASKED_AHEAD = DENSE_PIECES < RING ? DENSE_PIECES : RING;  // by fill_dense

static_assert(TOKENS >= 1 && TOKENS <= 8, "a product has eight columns, one a token");
static_assert(DENSE_PARTS <= 16, "more parts than the order of the shared expert's sum has");

struct Dense {
    const u8* codes;
    const float* scales;
};

// The scales of a warp's pieces, run by run. They are cold: a warp that asked for each when it comes to
// its piece would wait for memory once a piece, whatever waits in the ring.
// Where there is one pair, its tiles may be of two slabs, and have factors of their own then.
constexpr int HALVES = PAIRS == 1 ? 2 : 1;
template <int Slabs>
constexpr int FACTORS = HALVES < Slabs ? HALVES : Slabs;
__shared__ float dense_factors[WARPS][WARP_PARTS * PAIRS][PART_GROUPS][HALVES];

// Every part's sums of the block's rows, for every token.
__shared__ float dense_partial[DENSE_PARTS][ROWS][TOKENS];

// A part of a warp and a pair of tiles, by its number. Where warps have equally many, the build knows
// all of them, and unrolled code has no branch for what cannot be.
struct DenseRun {
    int number;

    static __device__ __forceinline__ DenseRun first() { return {0}; }
    __device__ __forceinline__ int part() const {
        return (int)threadIdx.x / 32 + number / PAIRS * WARPS;
    }
    __device__ __forceinline__ int pair() const { return number % PAIRS; }
    __device__ __forceinline__ bool inside() const {
        return DENSE_PARTS % WARPS == 0 ? number < WARP_PARTS * PAIRS : part() < DENSE_PARTS;
    }
    __device__ __forceinline__ void advance() { ++number; }
    __device__ __forceinline__ int groups() const {
        return K_CHUNKS % DENSE_PARTS == 0 ? PART_GROUPS
                                           : (K_CHUNKS - part() + DENSE_PARTS - 1) / DENSE_PARTS;
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
                const u32 row = PAIRS == 2 && run.pair() ? rows.of_tile[TILES - 2 + j % 2]
                                                         : rows.of_tile[j % 2];
                stream.from[j] = slab_of(slab, run.pair(), j % 2).codes + (u64)row * LANE_CODES +
                                 j / 2 * DENSE_CHUNK + threadIdx.x % 4 * 16;
            }
            stream.at = run.part() * (CHUNK / 16);
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

// Asks for as many pieces as find room before the chosen experts are known; fill_behind for what finds
// room behind them, once those are.
template <int Slabs, int Routed>
__device__ __forceinline__ void fill_dense(DenseWalk<Slabs, Routed>& walk, Stream& stream,
                                           const Ring& ring) {
    walk.begin();
    stream.left = 0;
#pragma unroll
    for (int i = 0; i < ASKED_AHEAD; ++i) ask(walk, stream, ring[i]);
}
template <int Slabs, int Routed>
__device__ __forceinline__ void fill_behind(DenseWalk<Slabs, Routed>& walk, Stream& stream,
                                            const Ring& ring) {
#pragma unroll
    for (int i = ASKED_AHEAD; i < RING; ++i) ask(walk, stream, ring[i]);
}

// What a warp reads of one token's row: copied into `room` of K elements, by the warp itself. A wait and
// __syncwarp follow; so they do for the next.
__device__ __forceinline__ void copy_wide(bf16* room, const bf16* x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < DENSE_PARTS; first += WARPS)
#pragma unroll
        for (int behind = 0; behind < PART_GROUPS; behind += 2) {
            const int part = first + threadIdx.x / 32;
            const int group = part + (behind + lane / 16) * DENSE_PARTS;
            const int at = group * CHUNK + lane % 16 * 8;
            if (part < DENSE_PARTS && group < K_CHUNKS) cp_async16(room + at, x + at);
        }
}

// Starts the copies of this warp's dense_factors. row: the first of each slab in the block.
template <int Slabs>
__device__ __forceinline__ void copy_dense_factors(const Dense (&slab)[Slabs], int row) {
#pragma unroll
    for (int begin = 0; begin < DENSE_PIECES; begin += 32) {
        const int i = begin + threadIdx.x % 32, group = i % PART_GROUPS;
        const DenseRun run = {i / PART_GROUPS};
        if (i >= DENSE_PIECES || !run.inside() || group >= run.groups()) continue;
#pragma unroll
        for (int half = 0; half < FACTORS<Slabs>; ++half)
            cp_async<4>(&dense_factors[threadIdx.x / 32][run.number][group][half],
                        slab_of(slab, run.pair(), half).scales + (i64)(row / CHUNK) * K_CHUNKS +
                            run.part() + group * DENSE_PARTS);
    }
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

// All of a warp's parts into `dense_partial`. x: [TOKENS, K]; one token's is in shared memory.
template <int Slabs, int Routed>
__device__ __forceinline__ void finish_dense(DenseWalk<Slabs, Routed>& walk, Stream& stream,
                                             const Ring& ring, const bf16* x) {
    constexpr bool EVEN = K_CHUNKS % DENSE_PARTS == 0 && DENSE_PARTS % WARPS == 0;
    const int lane = threadIdx.x % 32, token = lane / 4;
    // One token's x: lanes that have none read zeros.
    const bool has_x = TOKENS == 1 || token < TOKENS;
    const bool own = TOKENS > 1 || token == 0;
    const int step = own ? DENSE_PARTS * CHUNK : 0;
    const bf16 *at = nullptr, *const first_x = x + (i64)token * K + lane % 4 * 16;
    const float* factors = nullptr;  // those of the next piece
    float total[4] = {};
    DenseRun run = DenseRun::first();
    int left = 0;
#pragma unroll(DENSE_PIECES <= 2 * RING ? (DENSE_PIECES + RING - 1) / RING : 1)
    for (int done = 0; done < DENSE_PIECES; done += RING)
#pragma unroll
        for (int i = 0; i < RING; ++i) {
            if (done + i >= DENSE_PIECES) break;
            const bool there = EVEN || run.inside();
            Piece piece = {};
            if (there) piece = Piece::next_of(ring[i], PIECE_CHUNKS);
            ask(walk, stream, ring[i]);
            if (there) {
                if (left == 0) {
                    left = run.groups();
                    at = own ? first_x + run.part() * CHUNK : (const bf16*)no_x();
                    factors = dense_factors[threadIdx.x / 32][run.number][0];
                }
                float factor[FACTORS<Slabs>];
#pragma unroll
                for (int half = 0; half < FACTORS<Slabs>; ++half) factor[half] = factors[half];
                factors += HALVES;
                float sum[4] = {};
                multiply_dense(piece.load, at, has_x, sum);
                at += step;
                --left;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    total[e] = fmaf(sum[e], factor[e / 2 % FACTORS<Slabs>], total[e]);
                    // Products hold rows lane / 4 and lane / 4 + 8 of two tiles, for two tokens.
                    const int n = 16 * run.pair() + 8 * (e / 2) + lane / 4;
                    const int m = 2 * (lane % 4) + e % 2;
                    if (left == 0 && m < TOKENS) dense_partial[run.part()][n][m] = total[e];
                    if (left == 0) total[e] = 0.0f;
                }
                if (left == 0) run.advance();
            }
        }
}

__device__ __forceinline__ float dense_sum(int row, int token) {
    float sum = dense_partial[0][row][token];
#pragma unroll
    for (int part = 1; part < DENSE_PARTS; ++part) sum += dense_partial[part][row][token];
    return sum;
}

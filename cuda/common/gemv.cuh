// A few rows of x past a weight matrix on tensor cores, shared by linear_bf16 and linear_fp8, so that
// equal weights give equal bytes whatever they are stored in.
//
//   y[m, n] = sum over k of w[n, k] * x[m, k]      w [N, K], x bf16 [ROWS, K], y f32 [ROWS, N]
//
// The weights are the tall operand of m16n8k16, the rows of x its eight columns. A column is computed
// from its own row of x alone, and rows that are not there are columns of zeros: so a row gives the
// same bytes whatever runs beside it.
//
// Order of the sum. K is cut into groups of 128, in which FP8 weights share a scale, and a group into
// two chunks of 64. In a chunk lane quarter q (lane % 4) has elements 16 q .. 16 q + 15, in one load
// of codes or two of bf16; product j of four takes the elements 16 q + 4 j .. + 3 of every quarter.
// The eight products of a group are chained in the tensor core from 0. Then group j belongs to part
// j % PARTS: its sum, times the weights' factor, is fused onto the part's, groups ascending; and the
// parts are added in ascending order. PARTS depends on K alone: the order does not change with N,
// with the rows of x, or with how rows of w are dealt out.
//
// A warp has one part of one set of 8 * TILES rows of w and walks its chunks, pass after pass down the
// rows, with DEPTH chunks of weights and x on their way. Weights are asked for before x: they do not
// wait for the kernel before. Rows past N repeat the last one and are not stored; past K all is 0.
//
// Build constants: ROWS (1..8), PARTS, SETS (of rows in a block), TILES (1, 2 or 4), PASSES; TAIL, 1
// if K is no multiple of 128.
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/overlap.cuh"

constexpr int GROUP = 128;
constexpr int CHUNK = 64;
constexpr int LANE_ELEMENTS = 16;
constexpr int PRODUCTS = CHUNK / 16;
constexpr int WARPS = PARTS * SETS;
constexpr int SET_ROWS = 8 * TILES;
constexpr int BLOCK_ROWS = SETS * SET_ROWS;  // of one pass
constexpr int PAIRS = (TILES + 1) / 2;       // of eight rows each: what one product takes
constexpr int MIN_BLOCKS = WARPS > 8 ? 1 : 16 / WARPS;  // on an SM; no build may spill

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(WARPS <= 16, "sixteen warps of 128 registers fill an SM; lower SETS");
static_assert(TILES == 1 || TILES % 2 == 0, "a product takes two tiles of eight rows");

// What a lane holds of one chunk.
template <class Weights>
struct Chunk {
    typename Weights::Raw w[TILES];
    uint4 x[2];
    float scale;  // of the group, loaded with its second chunk
};

// The sums of every part, until they are added.
using Partial = float[PASSES][SETS][PARTS][SET_ROWS][ROWS];

// Where a set's rows begin in each pass: block after block, down the rows.
struct InOrder {
    int first_row;
    __device__ __forceinline__ int row_of(int pass) const { return first_row + pass * BLOCK_ROWS; }
};

// The chunks that a warp loads: the two of a group, the groups of its part, then the next pass.
template <bool Grouped, class Weights, class Deal>
struct Walk {
    const Weights& weights;
    const Deal& deal;
    const bf16* x;        // where this lane's row starts
    int K, group_rows;    // as in gemv below
    int first_k, groups;  // of this lane; of this part
    int pass, row, left;  // row: first of the set; left: groups in this pass
    const typename Weights::Element* from[TILES];  // this lane's, in the group's first chunk
    const bf16* from_x;
    const float* scale;

    __device__ __forceinline__ void start_pass(int number) {
        pass = number;
        row = deal.row_of(pass);
        left = groups;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            from[t] = weights.row_at(row + 8 * t + (int)threadIdx.x % 32 / 4, K) + first_k;
        }
        from_x = x + (Grouped ? (i64)(row / group_rows) * K : 0) + first_k;
        scale = weights.scale_of(row, first_k / GROUP);
    }
    __device__ __forceinline__ bool past_k(bool second) const {
        return TAIL && first_k + (groups - left) * (GROUP * PARTS) + (second ? CHUNK : 0) >= K;
    }
    __device__ __forceinline__ void load_weights(Chunk<Weights>& chunk, int pair,
                                                 bool second) const {
#pragma unroll
        for (int t = 2 * pair; t < 2 * pair + 2 && t < TILES; ++t)
            chunk.w[t] = past_k(second) ? typename Weights::Raw{}
                                        : Weights::load(from[t] + (second ? CHUNK : 0));
    }
    // A lane without a row of x keeps the zeros that it starts with.
    __device__ __forceinline__ void load_x(Chunk<Weights>& chunk, bool second) const {
        if (past_k(second)) {
            chunk.x[0] = chunk.x[1] = make_uint4(0, 0, 0, 0);
        } else if (threadIdx.x % 32 / 4 < ROWS) {
            const bf16* at = from_x + (second ? CHUNK : 0);
            chunk.x[0] = load16(at);
            chunk.x[1] = load16(at + 8);
        }
    }
    __device__ __forceinline__ void load_scale(Chunk<Weights>& chunk, bool second) const {
        if (Weights::SCALED && second) chunk.scale = weights.read_scale(scale, row);
    }
    __device__ __forceinline__ void advance(bool second) {
        if (!second) return;
        --left;
#pragma unroll
        for (int t = 0; t < TILES; ++t) from[t] += GROUP * PARTS;
        from_x += GROUP * PARTS;
        scale += PARTS;
        if (PASSES > 1 && left == 0) start_pass(pass + 1);
    }
};

// Two tiles' share of a chunk, on to their sums.
template <class Weights>
__device__ __forceinline__ void multiply(const Chunk<Weights>& chunk, int pair, float (&sum)[4]) {
#pragma unroll
    for (int j = 0; j < PRODUCTS; ++j) {
        u32 a[4] = {};
        Weights::decode(chunk.w[2 * pair], j, a[0], a[2]);
        if constexpr (TILES > 1) Weights::decode(chunk.w[2 * pair + 1], j, a[1], a[3]);
        const uint4 x = chunk.x[j / 2];
        const u32 b[2] = {j % 2 ? x.z : x.x, j % 2 ? x.w : x.y};
        mma_bf16_16816(sum, a, b);
    }
}

// The sums of `passes` passes of this thread's set, in parts. Weights: row_at(row, K) is where a row's
// elements start; Raw holds 16 of them; load(elements) and decode(raw, j, low pair, high pair) read
// them. If they are SCALED a group's sum is multiplied by what scale_of(row, group) points at. DEPTH
// chunks are in flight. x: its first row.
template <bool Grouped, class Weights, class Deal>
__device__ __forceinline__ void sum_passes(const Weights& weights, const Deal& deal, const bf16* x,
                                           int K, int group_rows, i64 x_stride, int passes,
                                           Partial& partial) {
    constexpr int DEPTH = Weights::DEPTH, UNROLL = DEPTH % 2 ? 2 * DEPTH : DEPTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = warp % PARTS, set = warp / PARTS;
    const int tile_row = lane / 4, quarter = lane % 4;
    const int groups = ((K + GROUP - 1) / GROUP - part + PARTS - 1) / PARTS;
    const int steps = passes * groups * 2;

    Walk<Grouped, Weights, Deal> walk{weights, deal,       x + tile_row * x_stride,
                                      K,       group_rows, part * GROUP + quarter * LANE_ELEMENTS,
                                      groups};
    walk.start_pass(0);
    Walk<Grouped, Weights, Deal> walk_x = walk;
    Chunk<Weights> ring[DEPTH] = {};
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (d >= steps) break;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) walk.load_weights(ring[d], pair, d % 2);
        walk.load_scale(ring[d], d % 2);
        walk.advance(d % 2);
    }
    // Kernels do not promise that x is read-only for good: such a load could go ahead of the wait.
    wait_for_previous();
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (d >= steps) break;
        walk_x.load_x(ring[d], d % 2);
        walk_x.advance(d % 2);
    }

    float sum[PAIRS][4] = {}, total[PAIRS][4] = {};
    int left = groups, pass = 0;
    for (int first = 0; first < steps; first += UNROLL) {
#pragma unroll
        for (int d = 0; d < UNROLL; ++d) {
            if (first + d >= steps) break;
            Chunk<Weights>& chunk = ring[d % DEPTH];
            const bool more = first + d + DEPTH < steps, next_second = (d + DEPTH) % 2;
            const float scale = chunk.scale;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                multiply<Weights>(chunk, pair, sum[pair]);
                if (more) walk.load_weights(chunk, pair, next_second);  // its place is free now
            }
            if (more) {
                walk.load_x(chunk, next_second);
                walk.load_scale(chunk, next_second);
                walk.advance(next_second);
            }
            if (d % 2 == 0) continue;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    total[pair][i] = fmaf(sum[pair][i], Weights::SCALED ? scale : 1.0f,
                                          total[pair][i]);
                    sum[pair][i] = 0.0f;
                }
            if (--left > 0) continue;
            // The part of this pass is done. Products hold rows tile_row and tile_row + 8 of two
            // tiles, for two rows of x.
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int row = 16 * pair + 8 * (i / 2) + tile_row, m = 2 * quarter + i % 2;
                    if (m < ROWS && row < SET_ROWS)
                        partial[pass][set][part][row][m] = total[pair][i];
                    total[pair][i] = 0.0f;
                }
            left = groups;
            ++pass;
        }
    }
}

// The parts together, for row `at` of all passes of the block and row m of x.
__device__ __forceinline__ float sum_of_row(const Partial& partial, int at, int m) {
    const auto& parts = partial[at / BLOCK_ROWS][at % BLOCK_ROWS / SET_ROWS];
    float value = parts[0][at % SET_ROWS][m];
#pragma unroll
    for (int p = 1; p < PARTS; ++p) value += parts[p][at % SET_ROWS][m];
    return value;
}

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(bf16* to, float value) { *to = f32_to_bf16(value); }

// Grouped: every `group_rows` rows of w take the next K columns of x; else all take the same. y in f32,
// or rounded once more to bf16.
template <bool Grouped, class Weights, class Output>
__device__ __forceinline__ void gemv(const Weights& weights, const bf16* x, Output* y, int N, int K,
                                     int group_rows, i64 x_stride, i64 y_stride) {
    __shared__ Partial partial;
    let_next_start();
    const int block_row = blockIdx.x * (PASSES * BLOCK_ROWS);
    const int first_row = block_row + (int)threadIdx.x / 32 / PARTS * SET_ROWS;
    int passes = 0;
    while (passes < PASSES && first_row + passes * BLOCK_ROWS < N) ++passes;
    sum_passes<Grouped>(weights, InOrder{first_row}, x, K, group_rows, x_stride, passes, partial);
    __syncthreads();
    for (int i = threadIdx.x; i < PASSES * BLOCK_ROWS * ROWS; i += 32 * WARPS) {
        const int m = i / (PASSES * BLOCK_ROWS), at = i % (PASSES * BLOCK_ROWS);
        if (block_row + at < N)
            store(y + m * y_stride + block_row + at, sum_of_row(partial, at, m));
    }
}

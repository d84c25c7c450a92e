// A softmax over chunks of listed rows and a sink: the steps that the attention kernels share, and
// with them the order of their sums.
//
// Order. Absent entries are dropped first, wherever they stand; what is left is cut into chunks of
// CHUNK in list order. A logit is summed by a warp: lane i takes k = 4 i .. 4 i + 3, then 128 on,
// ascending, by fma; the lanes fold by the xor butterfly; times scale. A chunk's values are summed
// by fma in list order from 0, its weights by a warp. Chunks are folded ascending. So a row's bytes
// depend on its own present entries alone: not on T, on padding, or on which kernel computed them.
//
// Weights are y * 2^p (common/exponent.cuh), relative to the largest p of the chunk, so that joining
// chunks multiplies by powers of two only and does not round.
//
// A block of 10 warps takes HEADS heads of one query, so a row that is loaded serves all of them.
//
// Build constants: DIM, CHUNK_ENTRIES, HEADS_OF_BLOCK (8 unless given).
#pragma once

#include "common/copy.cuh"
#include "common/exponent.cuh"
#include "common/probe.cuh"
#include "common/scan.cuh"

#ifndef DIM
#define DIM 512
#endif
#ifndef HEADS_OF_BLOCK
#define HEADS_OF_BLOCK 8
#endif
static_assert(DIM % 4 == 0 && DIM >= 4 && DIM <= 512, "K must be a multiple of 4 up to 512");

constexpr int HEADS = HEADS_OF_BLOCK;
constexpr int CHUNK = CHUNK_ENTRIES;  // a build constant: dsv4/kernels/attention.py
constexpr int WARP_ROWS = 4;
constexpr int THREADS = CHUNK / WARP_ROWS * 32;
constexpr int VECTORS = DIM / 4;
constexpr int PER_THREAD = 4;  // list entries a thread looks at in one step

static_assert(WARP_ROWS * HEADS <= 32, "a lane keeps one logit of its warp");
static_assert(DIM / 2 <= THREADS, "a thread sums two columns");

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(float a, float b, double c) {
    return fma((double)a, (double)b, c);
}
__device__ __forceinline__ double multiply_add(double a, float b, double c) {
    return fma(a, (double)b, c);
}

// What the threads of a block share beside the rows themselves.
template <class Real>
struct Board {
    alignas(16) Real weight[CHUNK][HEADS];  // logits first
    Real power[HEADS];  // of the chunk, or how far to scale what was summed before
    Real total[HEADS];  // of the chunk, or how far to scale the chunk
    i32 rows[CHUNK];
    i32 scratch[32];
};

// The entries that a walk along the list has passed for good, and how many of them were present.
struct Walk {
    i32 entries, present;
};

// Puts the rows of chunk number `chunk` into board.rows; returns how many there are.
template <class Real>
__device__ __forceinline__ i32 gather(const i32* ids, i32 S, i32 N, i32 chunk, Walk& walk,
                                      Board<Real>& board) {
    const i32 first = chunk * CHUNK;
    i32 found = walk.present;
    while (walk.entries < S) {
        i32 id[PER_THREAD], mine = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const i32 entry = walk.entries + threadIdx.x * PER_THREAD + i;
            id[i] = entry < S ? ids[entry] : -1;
            mine += (u32)id[i] < (u32)N;
        }
        i32 here;
        i32 rank = walk.present + block_count_before(mine, board.scratch, here) - first;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            if ((u32)id[i] >= (u32)N) continue;
            if (rank >= 0 && rank < CHUNK) board.rows[rank] = id[i];
            ++rank;
        }
        found = walk.present + here;
        if (found >= first + CHUNK) break;  // the next chunk may begin in this step
        walk.present = found;
        walk.entries += THREADS * PER_THREAD;
    }
    __syncthreads();
    return min(found - first, CHUNK);
}

// The query's heads, zero past the last one.
__device__ __forceinline__ void load_heads(const float* q, i32 heads, float* tile) {
    for (int i = threadIdx.x; i < HEADS * VECTORS; i += THREADS) {
        const bool there = i / VECTORS < heads;
        cp_async16_or_zero(tile + 4 * i, q + (there ? 4 * i : 0), there);
    }
}

// A chunk's rows, with zeros up to a whole number of warps.
__device__ __forceinline__ void load_rows(const float* kv, const i32* rows, i32 count,
                                          float* tile) {
    const i32 whole = (count + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS;
    for (int i = threadIdx.x; i < whole * VECTORS; i += THREADS) {
        const i32 row = i / VECTORS, column = i % VECTORS * 4;
        const bool there = row < count;
        cp_async16_or_zero(tile + 4 * i, kv + (i64)(there ? rows[row] : 0) * DIM + column, there);
    }
}

// The same, each warp the rows whose logits it finds.
__device__ __forceinline__ void load_own_rows(const float* kv, const i32* rows, i32 count,
                                              float* tile) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * WARP_ROWS;
    if (first >= count) return;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; ++r) {
        const bool there = first + r < count;
        const float* const from = kv + (i64)(there ? rows[first + r] : 0) * DIM;
        for (int k = 4 * lane; k < DIM; k += 128)
            cp_async16_or_zero(tile + (first + r) * DIM + k, from + k, there);
    }
}

// Logits of 4 rows and 8 heads a warp, by all its lanes. In f64 4 heads at a time: twice as many sums
// would not fit the registers.
template <class Real>
__device__ __forceinline__ void find_logits(const float* q, const float* kv, i32 count, Real scale,
                                            Board<Real>& board) {
    constexpr int TOGETHER = sizeof(Real) == 4 ? HEADS : HEADS / 2;
    constexpr int SUMS = WARP_ROWS * TOGETHER;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * WARP_ROWS;
    if (row >= count) return;
#pragma unroll 1
    for (int head = 0; head < HEADS; head += TOGETHER) {
        Real sum[SUMS] = {};
#pragma unroll 1
        for (int k = 4 * lane; k < DIM; k += 128) {
            float4 b[WARP_ROWS];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) b[r] = *(const float4*)(kv + (row + r) * DIM + k);
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                const float4 a = *(const float4*)(q + (head + h) * DIM + k);
#pragma unroll
                for (int r = 0; r < WARP_ROWS; ++r) {
                    Real& s = sum[r * TOGETHER + h];
                    s = multiply_add(a.x, b[r].x, s);
                    s = multiply_add(a.y, b[r].y, s);
                    s = multiply_add(a.z, b[r].z, s);
                    s = multiply_add(a.w, b[r].w, s);
                }
            }
        }
        const Real logit = warp_sums(sum) * scale;
        const int which = lane / (32 / SUMS);
        if (lane % (32 / SUMS) == 0)
            board.weight[row + which / TOGETHER][head + which % TOGETHER] = logit;
    }
}

// A chunk's logits by query and head, then by place among the present entries.
template <class Real>
__device__ __forceinline__ void probe_logits(i64 query, i32 heads, i32 chunk, i32 count, i32 S,
                                             const Board<Real>& board) {
    for (int i = threadIdx.x; i < count * HEADS; i += THREADS) {
        const int row = i / HEADS, head = i % HEADS;
        if (head < heads)
            PROBE("logit", (query + head) * S + chunk * CHUNK + row, board.weight[row][head]);
    }
}

// Logits become weights relative to the largest power of the chunk, a warp a head; returns that
// power and the weights' sum on every lane of the warp.
template <class Real>
__device__ __forceinline__ Real weigh(i32 count, Board<Real>& board, Real& total) {
    const int lane = threadIdx.x % 32, head = threadIdx.x / 32;
    constexpr int TURNS = (CHUNK + 31) / 32;
    Real y[TURNS], power[TURNS], top = no_power<Real>();
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int row = lane + 32 * i;
        y[i] = 0;
        power[i] = no_power<Real>();
        if (row < count) y[i] = exp_scaled(board.weight[row][head], power[i]);
        if (power[i] > top) top = power[i];
    }
    top = warp_max(top);
    Real mine = 0;
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int row = lane + 32 * i;
        const Real weight = scaled(y[i], power[i] - top);
        if (row < count) board.weight[row][head] = weight;
        mine += weight;
    }
    total = warp_sum(mine);
    return top;
}

// The chunk's values for 8 heads and two columns.
template <class Real>
__device__ __forceinline__ void sum_values(const float* kv, i32 count, const Board<Real>& board,
                                           Real (&value)[HEADS][2]) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) value[h][0] = value[h][1] = 0;
    if (threadIdx.x >= DIM / 2) return;
#pragma unroll 8
    for (int row = 0; row < count; ++row) {
        const float2 v = *(const float2*)(kv + row * DIM + 2 * threadIdx.x);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            value[h][0] = multiply_add(board.weight[row][h], v.x, value[h][0]);
            value[h][1] = multiply_add(board.weight[row][h], v.y, value[h][1]);
        }
    }
}

// A sum over the chunks so far and its power. A chunk without weight changes nothing, not even the
// sign of a zero: padding must not show.
template <class Real>
__device__ __forceinline__ Real fold(Real sum, Real sum_fade, Real chunk, Real chunk_fade) {
    return chunk_fade == no_power<Real>() ? sum : scaled(sum, sum_fade) + scaled(chunk, chunk_fade);
}

// How far to scale down the sum so far and the chunk to meet at the larger power, which is returned.
template <class Real>
__device__ __forceinline__ Real meet(Real power, Real chunk_power, Real& fade, Real& chunk_fade) {
    const Real top = power > chunk_power ? power : chunk_power;
    fade = power - top;
    chunk_fade = chunk_power == no_power<Real>() ? chunk_power : chunk_power - top;
    return top;
}

// The denominator with the sink in it, e^sink = y * 2^sink_power, and how far to scale the values down
// to meet it.
template <class Real>
__device__ __forceinline__ Real denominator(Real power, Real total, Real y, Real sink_power,
                                            Real& fade, i64 row) {
    Real sink_fade;
    const Real top = meet(power, sink_power, fade, sink_fade);
    const Real below = fold(total, fade, y, sink_fade);
    PROBED(if (below > 0) PROBE("log2_denominator", row, log2((double)below) + (double)top);)
    return below;
}
template <class Real>
__device__ __forceinline__ Real denominator(Real power, Real total, float sink, Real& fade,
                                            i64 row) {
    Real sink_power;
    const Real y = exp_scaled((Real)sink, sink_power);
    return denominator(power, total, y, sink_power, fade, row);
}

template <class Real>
__device__ __forceinline__ float divided(Real value, Real fade, Real below) {
    return below == 0 ? 0.0f : (float)(scaled(value, fade) / below);
}

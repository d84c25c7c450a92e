// compressor: blocks of C rows pooled into one row each, by a softmax over the rows for every channel
//
//   y[b,k] = sum of e^l * v / sum of e^l over the pairs (l, v) of block b and channel k
//
//   kv, score f32 [S, L]    ape f32 [C, L]    y f32 [B, K]    L is K, or 2 K with overlap
//
// Without overlap the pairs are (score + ape, kv) of the block's own C rows. With overlap they are C
// rows of the block before, in the first K columns, then its own C rows in the last K; ape goes by a
// row's place in its own block. kv and score are raw projections: ape is added here, in f32, as the
// model does when it stores them added. A row of score -inf is absent, whatever its kv holds; a
// channel without any row gives 0. OVERLAP and PARTS are fixed at build time.
//
//   compressor_pool      B blocks in sequence, the first one at position `first`
//   compressor_pool_at   for query t the block that ends at positions[t], zeros where none does
//
// Position p is row p % ring, so the rows may lie in a ring, or in order where ring exceeds every
// position. `previous` is 0 when nothing precedes the first block; a block at position 0 has nothing
// before it either.
//
// A thread takes every PARTS-th pair of a channel in ascending order: first the maximum, then both
// sums in f64, exponentials included; the parts' sums are added ascending. One rounding, at the
// store. The order depends on C and OVERLAP alone, so one block pools to the bytes that many do.
#include "common/math.cuh"

#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef PARTS
#define PARTS 1
#endif

constexpr int THREADS = 128;
constexpr int CHANNELS = THREADS / PARTS;

// The raw rows and where a block's rows are among them.
struct Rows {
    const float *kv, *score, *ape;
    i32 C, K, ring;
    i32 own;        // row of the block's first position
    bool previous;  // whether the block before it exists
};

// Pair number `pair` of a channel: its logit, or minus infinity if it is absent, and its value.
__device__ __forceinline__ float pair_of(const Rows& rows, i32 channel, i32 pair,
                                         const float*& value) {
    constexpr int WIDTHS = 1 + OVERLAP;
    const bool before = OVERLAP && pair < rows.C;
    if (before && !rows.previous) return -INF_F32;
    const i32 place = OVERLAP && !before ? pair - rows.C : pair;
    i32 row = rows.own + place - (before ? rows.C : 0);
    if (row < 0) row += rows.ring;
    if (row >= rows.ring) row -= rows.ring;
    const i32 column = channel + (OVERLAP && !before ? rows.K : 0);
    const i64 at = (i64)row * WIDTHS * rows.K + column;
    value = rows.kv + at;
    return rows.score[at] + rows.ape[(i64)place * WIDTHS * rows.K + column];
}

// Whole block of threads; threads past the last channel take part in the barriers only.
__device__ __forceinline__ void pool(const Rows& rows, i32 channel, float* y) {
    __shared__ double above[PARTS][CHANNELS], below[PARTS][CHANNELS];
    __shared__ float tops[PARTS][CHANNELS];
    const int part = threadIdx.x / CHANNELS, slot = threadIdx.x % CHANNELS;
    const i32 pairs = channel < rows.K ? (1 + OVERLAP) * rows.C : 0;
    const float* value;

    float top = -INF_F32;
#pragma unroll 4
    for (i32 pair = part; pair < pairs; pair += PARTS)
        top = fmaxf(top, pair_of(rows, channel, pair, value));
    if (PARTS > 1) {
        tops[part][slot] = top;
        __syncthreads();
#pragma unroll
        for (int other = 0; other < PARTS; ++other) top = fmaxf(top, tops[other][slot]);
    }

    double sum = 0.0, weights = 0.0;
#pragma unroll 4
    for (i32 pair = part; pair < pairs; pair += PARTS) {
        const float logit = pair_of(rows, channel, pair, value);
        if (logit == -INF_F32) continue;
        const double weight = exp_f64((double)logit - (double)top);
        weights += weight;
        sum = fma(weight, (double)*value, sum);
    }
    if (PARTS > 1) {
        above[part][slot] = sum;
        below[part][slot] = weights;
        __syncthreads();
        if (part > 0) return;
#pragma unroll
        for (int other = 1; other < PARTS; ++other) {
            sum += above[other][slot];
            weights += below[other][slot];
        }
    }
    if (channel < rows.K) *y = weights == 0.0 ? 0.0f : (float)(sum / weights);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    compressor_pool(const float* kv, const float* score, const float* ape, float* y, i32 C, i32 K,
                    i32 first, i32 ring, i32 previous) {
    const i32 channel = blockIdx.x * CHANNELS + threadIdx.x % CHANNELS;
    const i32 start = first + blockIdx.y * C;
    const Rows rows = {kv, score, ape, C, K, ring, start % ring, previous || blockIdx.y > 0};
    pool(rows, channel, y + (i64)blockIdx.y * K + channel);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    compressor_pool_at(const float* kv, const float* score, const float* ape, const i32* positions,
                       float* y, i32 C, i32 K, i32 ring) {
    const i32 channel = blockIdx.x * CHANNELS + threadIdx.x % CHANNELS;
    float* to = y + (i64)blockIdx.y * K + channel;
    const i32 position = positions[blockIdx.y];
    const i32 start = position - (C - 1);
    if (start < 0 || start % C != 0) {
        if (channel < K && threadIdx.x < CHANNELS) *to = 0.0f;
        return;
    }
    const Rows rows = {kv, score, ape, C, K, ring, start % ring, start > 0};
    pool(rows, channel, to);
}

// A block of C raw rows pooled by a softmax over the rows, for kernels that give the same bytes.
//
// A thread takes every Parts-th pair of a channel in ascending order: first the maximum, then both
// sums in f64, exponentials included; the parts' sums are added ascending. One rounding, at the end.
// The order depends on C, Overlap and Parts alone, so one block pools to the bytes that many do.
#pragma once

#include "common/math.cuh"

// The raw rows and where a block's rows are among them. With Overlap the block before takes part too.
template <int Overlap>
struct RawRows {
    const float *kv, *score, *ape;
    i32 C, K, ring;
    i32 own;        // row of the block's first position
    bool previous;  // whether the block before it exists

    // Pair number `pair` of a channel: its logit, or minus infinity if it is absent, and its value.
    __device__ __forceinline__ float pair_of(i32 channel, i32 pair, const float*& value) const {
        constexpr int WIDTHS = 1 + Overlap;
        const bool before = Overlap && pair < C;
        if (before && !previous) return -INF_F32;
        const i32 place = Overlap && !before ? pair - C : pair;
        i32 row = own + place - (before ? C : 0);
        if (row < 0) row += ring;
        if (row >= ring) row -= ring;
        const i32 column = channel + (Overlap && !before ? K : 0);
        const i64 at = (i64)row * WIDTHS * K + column;
        value = kv + at;
        return score[at] + ape[(i64)place * WIDTHS * K + column];
    }
};

// The pooled channel, in the threads of part 0: part p of slot s is thread p * Channels + s. By a whole
// block; threads past the last channel take part in the barriers only.
template <int Parts, int Channels, int Overlap>
__device__ __forceinline__ float pooled(const RawRows<Overlap>& rows, i32 channel) {
    __shared__ double above[Parts][Channels], below[Parts][Channels];
    __shared__ float tops[Parts][Channels];
    const int part = threadIdx.x / Channels, slot = threadIdx.x % Channels;
    const i32 pairs = channel < rows.K ? (1 + Overlap) * rows.C : 0;
    const float* value;

    float top = -INF_F32;
#pragma unroll 4
    for (i32 pair = part; pair < pairs; pair += Parts)
        top = fmaxf(top, rows.pair_of(channel, pair, value));
    if (Parts > 1) {
        tops[part][slot] = top;
        __syncthreads();
#pragma unroll
        for (int other = 0; other < Parts; ++other) top = fmaxf(top, tops[other][slot]);
    }

    double sum = 0.0, weights = 0.0;
#pragma unroll 4
    for (i32 pair = part; pair < pairs; pair += Parts) {
        const float logit = rows.pair_of(channel, pair, value);
        if (logit == -INF_F32) continue;
        const double weight = exp_f64((double)logit - (double)top);
        weights += weight;
        sum = fma(weight, (double)*value, sum);
    }
    if (Parts > 1) {
        above[part][slot] = sum;
        below[part][slot] = weights;
        __syncthreads();
        if (part > 0) return 0.0f;
#pragma unroll
        for (int other = 1; other < Parts; ++other) {
            sum += above[other][slot];
            weights += below[other][slot];
        }
    }
    return weights == 0.0 ? 0.0f : (float)(sum / weights);
}

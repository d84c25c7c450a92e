// Step 1 of hyper_step: the parts of a row's streams, and their products with fn.
//
// Build constants: those of common/hyper_mail.cuh.
#pragma once

#include "common/hyper_mail.cuh"
#include "common/sources.cuh"

__device__ __forceinline__ int part_of(int rank, int own) { return rank + own * CLUSTER; }

// What a lane multiplies with row c of fn: its weights in LETTER parts of the block from `first` on.
using Columns = Floats<4>[LETTER][2];

__device__ __forceinline__ void load_columns(const float* fn, int c, int rows, int rank, int first,
                                             int count, Columns& weights) {
#pragma unroll
    for (int i = 0; i < LETTER; ++i) {
        const int k = part_of(rank, first + i) * STEP + (int)threadIdx.x % 32 * LANE_ELEMENTS;
        if (c >= rows || k >= count) continue;
        weights[i][0] = load_floats<4>(fn + (i64)c * count + k);
        weights[i][1] = load_floats<4>(fn + (i64)c * count + k + 4);
    }
}

// The streams go to x unless that is null.
template <int Rows, class Source>
__device__ __forceinline__ void make_streams(const Source& source, float* x, Mail<Rows>& mail,
                                             const Place& at, int D) {
    constexpr int QUADS = PARTS_EACH * STEP / 4;
    const int count = STREAMS * D;
#pragma unroll
    for (int first = 0; first < QUADS; first += 32 * WARPS<Rows>) {
        const int i = 4 * (first + (int)threadIdx.x), own = i / STEP;
        const int k = part_of(at.rank, own) * STEP + i % STEP;
        if (own >= PARTS_EACH || k >= count) continue;
        const int m = stream_of(k, D), d = k - m * D, warp = d % NORM_THREADS / 32;
        const Floats<4> four = source.four(at.row, D, m, d);
        store_floats(mail.fresh[own] + i % STEP, four);
        if (x != nullptr) store_floats(x + at.row * count + k, four);
        if (CLUSTERED)
            send(mail.first, &mail.columns[warp / TEAM][d / NORM_THREADS][m][d % 32], warp % TEAM,
                 four.at);
    }
}

// Sum c of LETTER parts of the block, from `first` on, by a warp, to the blocks that take it.
template <int Rows>
__device__ __forceinline__ void leave_sums(const Written& out, Mail<Rows>& mail, const Place& at,
                                           int c, int first, int count, const Columns& weights) {
    const int lane = threadIdx.x % 32;
    float* const to = out.partial + (at.row * (Rows + 1) + c) * PARTS;
    float sums[LETTER];
#pragma unroll
    for (int i = 0; i < LETTER; ++i) {
        const int part = part_of(at.rank, first + i);
        Floats<4> v[2] = {};
        if (part * STEP + lane * LANE_ELEMENTS < count) {
            v[0] = load_floats<4>(mail.fresh[first + i] + lane * LANE_ELEMENTS);
            v[1] = load_floats<4>(mail.fresh[first + i] + lane * LANE_ELEMENTS + 4);
        }
        float sum = 0.0f;
        // Lanes past the end multiply zeros, which leaves their +0 as it is.
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) {
            const float value = v[e / 4].at[e % 4];
            sum = fmaf(c < Rows ? weights[i][e / 4].at[e % 4] : value, value, sum);
        }
        sums[i] = warp_sum(sum);
        if (lane == 0 && part < PARTS) to[part] = sums[i];
    }
    if constexpr (CLUSTERED)
        if (lane < CLUSTER && takes<Rows>(lane, c))
            send(mail.first, mail.sums[c][at.rank] + first, lane, sums);
}

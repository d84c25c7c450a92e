// Chunks of a row's heads together, by the blocks of a cluster: block b has chunk b of CLUSTER, and joins
// every CLUSTER-th strip from b on. The others send it the strips' sums, and before those the powers and
// totals of the heads that they belong to. While the sums are on their way it makes everything else.
//
// Whole strips are sent, of columns and heads that are not there too: so the bytes of a block are known
// without counting.
//
// Build constants: those of common/attention_join.cuh, and CLUSTER: the chunks of a list if they are from
// 2 to 16, else 1. CLUSTERED 0 is for cards without clusters; then nothing here is used.
#pragma once

#include "common/attention_join.cuh"
#include "common/cluster.cuh"

#ifndef CLUSTERED
#define CLUSTERED HAS_CLUSTERS
#endif
#if CLUSTERED && CLUSTER > 1
#define BLOCKS_OF_A_LIST CLUSTER_OF(CLUSTER)
#else
#define BLOCKS_OF_A_LIST
#endif

constexpr bool MAILED = CLUSTERED && CLUSTER > 1;
constexpr int STRIPS_EACH = (STRIPS + CLUSTER - 1) / CLUSTER;  // of a block
// Strip s has head s % HEADS. GAP is the divisor that HEADS, a power of two, shares with CLUSTER: a block's
// strips are of every GAP-th head.
constexpr int LOW_BIT = CLUSTER & -CLUSTER;
constexpr int GAP = LOW_BIT < HEADS ? LOW_BIT : HEADS;
constexpr int HEADS_EACH = HEADS / GAP;
static_assert(CLUSTER % GAP == 0 && HEADS % GAP == 0, "a head's strips have the same blocks");
static_assert(CLUSTER <= 16 && HEADS_EACH <= THREADS / 32, "a warp has a head");

// Sums of the strips that a block joins, of every chunk. They take the place of its queries.
using Sums = float[STRIPS_EACH][CLUSTER][STRIP];
constexpr int SUMS_FLOATS = STRIPS_EACH * CLUSTER * STRIP;
constexpr int FRONT = MAILED && SUMS_FLOATS > HEADS* DIM ? SUMS_FLOATS : HEADS * DIM;

struct Mail {
    Inbox weights, sums;
    alignas(16) float weight[HEADS_EACH][CLUSTER][2];  // power and total of a chunk
    // Of the block's own: how its heads' sums are joined and divided.
    Step step[HEADS_EACH][CLUSTER];
    float fade[HEADS_EACH], below[HEADS_EACH];
};

// Any thread may do it, as long as it is one.
__device__ __forceinline__ void open_inboxes(Mail& mail, int rank) {
    const int strips = (STRIPS - rank + CLUSTER - 1) / CLUSTER;
    open_inbox(mail.weights, 4 * 2 * CLUSTER * HEADS_EACH);
    open_inbox(mail.sums, 4 * STRIP * CLUSTER * max(strips, 0));
}

// What head h of this block's chunk weighs, by a warp, to the blocks that have strips of it.
__device__ __forceinline__ void send_weights(Mail& mail, int rank, int h, float power,
                                             float total) {
    const int to = threadIdx.x % 32;
    const float both[2] = {power, total};
    if (to < CLUSTER && to % GAP == h % GAP)
        send(mail.weights, mail.weight[h / GAP][rank], to, both);
}

// This block's sums to the blocks that join them. Neighbouring threads, of two columns each, swap a head
// for a head, so that a letter has four columns of one.
__device__ __forceinline__ void send_sums(Mail& mail, Sums& sums, int rank,
                                          const float (&sum)[HEADS][2]) {
    const bool odd = threadIdx.x % 2 != 0;
    const int column = (int)threadIdx.x / 2 * 4;
#pragma unroll
    for (int first = 0; first < HEADS; first += 2) {
        const float got[2] = {
            __shfl_xor_sync(FULL_WARP, odd ? sum[first][0] : sum[first + 1][0], 1),
            __shfl_xor_sync(FULL_WARP, odd ? sum[first][1] : sum[first + 1][1], 1),
        };
        const float four[4] = {
            odd ? got[0] : sum[first][0],
            odd ? got[1] : sum[first][1],
            odd ? sum[first + 1][0] : got[0],
            odd ? sum[first + 1][1] : got[1],
        };
        const u32 strip = column / STRIP * HEADS + first + odd;
        if (strip < STRIPS)
            send(mail.sums, &sums[strip / CLUSTER][rank][column % STRIP], strip % CLUSTER, four);
    }
}

// Everything about a head but the sums, by a warp. weight: its chunks'.
__device__ __forceinline__ void find_steps(Mail& mail, int own, const Sink& sink, i64 row) {
    const int lane = threadIdx.x % 32;
    const float (&weight)[CLUSTER][2] = mail.weight[own];
    float reached = no_power<float>(), all = 0, fade;
    const Step own_step = step_of(lane < CLUSTER ? weight[lane][0] : no_power<float>(), reached);
    if (lane < CLUSTER) mail.step[own][lane] = own_step;
    __syncwarp();
#pragma unroll 4
    for (int chunk = 0; chunk < CLUSTER; ++chunk)
        all = mail.step[own][chunk].add(all, weight[chunk][1]);
    const float below = denominator(reached, all, sink.y, sink.power, fade, row);
    if (lane == 0) {
        mail.fade[own] = fade;
        mail.below[own] = below;
    }
}

// Awaits all mail, and joins. heads: that are there; o, row: of the first.
__device__ __forceinline__ void join_mail(Mail& mail, const Sums& sums, int rank, int heads,
                                          const Sink (&sinks)[HEADS], const Angles& angles, bf16* o,
                                          i64 row) {
    constexpr int WARPS = THREADS / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = rank % GAP + warp * GAP;
    BackTurn back = BackTurn::of(angles, (rank + warp * CLUSTER) / HEADS * STRIP + lane);
    await_mail(mail.weights);
    if (warp < HEADS_EACH && head < heads) find_steps(mail, warp, sinks[head], row + head);
    __syncthreads();
    await_mail(mail.sums);
#pragma unroll 1
    for (int own = warp; own < STRIPS_EACH; own += WARPS) {
        const int strip = rank + own * CLUSTER, h = strip % HEADS;
        const int column = strip / HEADS * STRIP + lane;
        if (strip >= STRIPS || h >= heads) continue;
        if (own != warp) back = BackTurn::of(angles, column);
        float sum = 0;
#pragma unroll 8
        for (int chunk = 0; chunk < CLUSTER; ++chunk)
            sum = mail.step[h / GAP][chunk].add(sum, sums[own][chunk][lane]);
        store_column(o + (i64)h * DIM, column,
                     divided(sum, mail.fade[h / GAP], mail.below[h / GAP]), back);
    }
}

// The indexer's scores of cached keys on tensor cores, for indexer_score_f32 and indexer_select: the
// same bytes from both.
//
//   score[n] = sum over h of max(0, q[h, :] . keys[n, :]) * (weights[h] * wscale)
//
// Order of the sum. A row's elements are cut into chunks of 32, of which lane quarter p (lane % 4) has
// elements 8 p .. 8 p + 7, in one load. The first of a chunk's two products takes the first four of
// every quarter, the second one the others, and all products of a row are chained in the tensor core
// from 0, zeros past the end. Sixteen heads are the tall operand, keys the columns: lane group g
// (lane / 4) has the products of heads g and g + 8 of every sixteen. It adds what they weigh by fma,
// heads ascending, from 0, and the groups fold by the xor butterfly, neighbours first. Nothing but H
// and K tells the order: not N, not T, not which warp has a key.
//
// A warp takes WARP_KEYS keys at a time and holds them in registers as they were loaded; the heads lie
// in shared memory as products take them, a lane's 16 bytes next to its neighbour's.
//
// Build constants: WIDTH (K, a multiple of 8 up to 128), HEADS (H, up to 128).
#pragma once

#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

#ifndef WIDTH
#define WIDTH 128
#endif
#ifndef HEADS
#define HEADS 64
#endif
static_assert(WIDTH % 8 == 0 && WIDTH <= 128, "a lane loads 8 elements and holds 32 keys");
static_assert(HEADS <= 128, "all heads lie in shared memory");

constexpr int CHUNKS = (WIDTH + 31) / 32;
constexpr int HEAD_TILES = (HEADS + 15) / 16;  // sixteens of heads
constexpr int KEY_TILES = 4;                   // eights of keys of a warp
constexpr int WARP_KEYS = 8 * KEY_TILES;

// A row's heads and what they weigh, zeros past the last.
struct Heads {
    uint4 operand[HEAD_TILES][CHUNKS][2][32];  // of a chunk's two products
    float weight[16 * HEAD_TILES];
};

// What a thread has of a row's heads on their way: of heads g and g + 8 of a sixteen, and a weight.
template <int THREADS>
struct HeadsOnWay {
    static constexpr int ALL = HEAD_TILES * CHUNKS * 32, PER = (ALL + THREADS - 1) / THREADS;
    static_assert(HEADS <= THREADS, "a thread has one weight");
    uint4 row[PER][2];
    float weight;

    __device__ __forceinline__ void load(const bf16* q, const float* weights) {
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                const int at = i * THREADS + threadIdx.x, lane = at % 32;
                const int head = at / (32 * CHUNKS) * 16 + 8 * m + lane / 4;
                const int k = at / 32 % CHUNKS * 32 + lane % 4 * 8;
                row[i][m] = head < HEADS && k < WIDTH ? load16(q + head * WIDTH + k)
                                                      : make_uint4(0, 0, 0, 0);
            }
        weight = threadIdx.x < HEADS ? weights[threadIdx.x] : 0.0f;
    }
    // By all threads of the block; a barrier must follow.
    __device__ __forceinline__ void keep(float wscale, Heads& heads) const {
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const int at = i * THREADS + threadIdx.x, lane = at % 32;
            if (ALL % THREADS != 0 && at >= ALL) break;
            uint4(&to)[2][32] = (&heads.operand[0][0])[at / 32];
            const uint4 &upper = row[i][0], &lower = row[i][1];
            to[0][lane] = make_uint4(upper.x, lower.x, upper.y, lower.y);
            to[1][lane] = make_uint4(upper.z, lower.z, upper.w, lower.w);
        }
        for (int h = threadIdx.x; h < 16 * HEAD_TILES; h += THREADS)
            heads.weight[h] = h < HEADS ? weight * wscale : 0.0f;
    }
};

// What a lane has of a warp's keys from `first` on, which is shown: key lane / 4 of each eight. A key
// that is not shown is not read, as it may hold anything: the last one that is stands for it.
using Keys = uint4[KEY_TILES][CHUNKS];
__device__ __forceinline__ void load_keys(const bf16* keys, i32 first, i32 shown, Keys& key) {
    const int lane = threadIdx.x % 32, part = lane % 4 * 8;
#pragma unroll
    for (int t = 0; t < KEY_TILES; ++t) {
        const bf16* const from = keys + (i64)min(first + 8 * t + lane / 4, shown - 1) * WIDTH +
                                 part;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
            key[t][c] = 32 * c + part < WIDTH ? load16(from + 32 * c) : make_uint4(0, 0, 0, 0);
    }
}

// A product's part of a score, added to c; a NaN stays one.
__device__ __forceinline__ float weighted(float product, float weight, float c) {
    return fmaf(product <= 0.0f ? 0.0f : product, weight, c);
}

// What a lane has of the scores of a warp's keys: of its heads, for two keys of each eight.
using Weighed = float[KEY_TILES][2];
__device__ __forceinline__ void weigh(const Keys& key, const Heads& heads, Weighed& total) {
    const int lane = threadIdx.x % 32, group = lane / 4;
#pragma unroll 1
    for (int tile = 0; tile < HEAD_TILES; ++tile) {
        float sum[KEY_TILES][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const uint4 operand = heads.operand[tile][c][second][lane];
                const u32 a[4] = {operand.x, operand.y, operand.z, operand.w};
#pragma unroll
                for (int t = 0; t < KEY_TILES; ++t) {
                    const uint4& k = key[t][c];
                    const u32 b[2] = {second ? k.z : k.x, second ? k.w : k.y};
                    mma_bf16_16816(sum[t], a, b);
                }
            }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const int h = 16 * tile + 8 * m + group;
            const float weight = heads.weight[h];
            if (HEADS % 16 != 0 && h >= HEADS) continue;
#pragma unroll
            for (int t = 0; t < KEY_TILES; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    total[t][i] = weighted(sum[t][2 * m + i], weight, total[t][i]);
        }
    }
}

// One of two values with the neighbour's part of it, in exchange for the other.
__device__ __forceinline__ float exchanged(bool second, float one, float other, int offset) {
    return (second ? other : one) + __shfl_xor_sync(FULL_WARP, second ? one : other, offset);
}

// The lanes' parts together: the score of one key on every lane, of key `key_of_lane`.
__device__ __forceinline__ float folded(const Weighed& total) {
    static_assert(KEY_TILES == 4, "eight values for eight lanes");
    const int lane = threadIdx.x % 32;
    float by_tile[KEY_TILES];
#pragma unroll
    for (int t = 0; t < KEY_TILES; ++t)
        by_tile[t] = exchanged(lane & 4, total[t][0], total[t][1], 4);
    const float low = exchanged(lane & 8, by_tile[0], by_tile[1], 8);
    const float high = exchanged(lane & 8, by_tile[2], by_tile[3], 8);
    return exchanged(lane & 16, low, high, 16);
}
__device__ __forceinline__ i32 key_of_lane(i32 first) {
    const int lane = threadIdx.x % 32;
    return first + (lane & 16) + (lane & 8) + lane % 4 * 2 + (lane / 4 & 1);
}

// The scores of a warp's keys, turn after turn, to store(key, score). key: those of the first turn; the
// next ones are on their way as soon as products have used them.
template <class Store>
__device__ __forceinline__ void score_turns(const bf16* keys, i32 first, i32 step, i32 shown,
                                            const Heads& heads, Keys& key, const Store& store) {
    for (; first < shown; first += step) {
        Weighed total = {};
        weigh(key, heads, total);
        if (first + step < shown) load_keys(keys, first + step, shown, key);
        const float made = folded(total);
        const i32 n = key_of_lane(first);
        if (n < shown) store(n, made);
    }
}

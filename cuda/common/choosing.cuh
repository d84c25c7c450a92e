// Which experts a gate chooses by its scores: those with the largest biased ones, or those that a table
// names. A warp chooses for a token.
//
// Build constants: ROWS (T), PER_LANE (experts of a lane); EARLY_BIASES, whether a lane holds their biases
// while it waits.
#pragma once

#include "common/copy.cuh"
#include "common/routing.cuh"

// Where the choosing warp has its token's scores: expert e at [e / PER_LANE][e % PER_LANE], a lane's in
// banks of their own.
using Scores = float[32][PER_LANE | 1];

__device__ __forceinline__ float& score_in(Scores& scores, i32 e) {
    return scores[e / PER_LANE][e % PER_LANE];
}

struct Chosen {
    i32* ids;
    float* weights;
    i32* order;
    i32 A;
    float scale;
};

// The experts with the largest biased scores.
struct Largest {
    const float* bias;
    float biases[PER_LANE];

    __device__ __forceinline__ void load(i32 E) {
        const i32 first = threadIdx.x % 32 * PER_LANE;
#pragma unroll
        for (i32 i = 0; i < PER_LANE; ++i) biases[i] = first + i < E ? bias[first + i] : 0.0f;
    }
    // Before the wait.
    __device__ __forceinline__ void begin(i32 E) {
        if (EARLY_BIASES)
            load(E);
        else if (threadIdx.x < PER_LANE)
            prefetch_l2(bias + 32 * threadIdx.x);
    }
    __device__ __forceinline__ void prefetch(i32) const {}
    // Before the scores are there.
    __device__ __forceinline__ void see(i32, i32 E, i32) {
        if (!EARLY_BIASES) load(E);
    }
    __device__ __forceinline__ void choose(Scores& scores, i32 t, i32 E, const Chosen& out) const {
        const i32 lane = threadIdx.x % 32;
        i32 rank[PER_LANE];
#pragma unroll
        for (i32 i = 0; i < PER_LANE; ++i) {
            const bool exists = lane * PER_LANE + i < E;
            const float score = exists ? scores[lane][i] : 0.0f;
            const i32 own = rank_of(score + biases[i]);
            rank[i] = exists ? own : NO_RANK;
        }
        const i32 id = take_largest(rank, out.A);
        finish(id, score_in(scores, id), out.scale, t, out.A, out.ids, out.weights, out.order);
    }
};

// Those that the table names for the token, or -1.
struct Named {
    const i64* table;
    const i32* tokens;
    i32 V;
    i32 id;

    __device__ __forceinline__ void begin(i32) {}
    // Brings the tokens' rows of the table near, which is too large to be there. By one warp.
    __device__ __forceinline__ void prefetch(i32 A) const {
        const i32 t = threadIdx.x % 32;
        if (t >= ROWS || tokens[t] < 0 || tokens[t] >= V) return;
        const i64* const row = table + (i64)tokens[t] * A;
        prefetch_l2(row);
        prefetch_l2(row + A - 1);
    }
    __device__ __forceinline__ void see(i32 t, i32 E, i32 A) {
        const i32 token = tokens[t], slot = threadIdx.x % 32;
        id = -1;
        if (slot >= A || token < 0 || token >= V) return;
        const i64 stored = table[(i64)token * A + slot];
        if (stored >= 0 && stored < E) id = (i32)stored;
    }
    __device__ __forceinline__ void choose(Scores& scores, i32 t, i32, const Chosen& out) const {
        const float score = id < 0 ? NAN_F32 : score_in(scores, id);
        finish(id, score, out.scale, t, out.A, out.ids, out.weights, out.order);
    }
};

// By a warp, from scores in memory. What other blocks wrote is read past L1, which may hold older bytes.
template <class Choice>
__device__ __forceinline__ void choose_from_memory(Choice& choice, const float* scores,
                                                   Scores& room, i32 t, i32 E, const Chosen& out) {
    choice.see(t, E, out.A);
#pragma unroll
    for (i32 i = 0; i < PER_LANE; ++i) {
        const i32 e = 32 * i + (i32)threadIdx.x % 32;
        if (e < E) score_in(room, e) = __ldcg(scores + t * E + e);
    }
    __syncwarp();
    choice.choose(room, t, E, out);
}

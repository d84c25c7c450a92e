// Where the residual streams of a token come from, four neighbours at a time.
//
// Column d of stream m is the first; rows start on 16 bytes, embeddings on 8.
//
// Build constants: STREAMS.
#pragma once

#include "common/convert.cuh"
#include "common/floats.cuh"
#include "common/math.cuh"

// Which stream element k of a row is in: a few comparisons, no division.
__device__ __forceinline__ int stream_of(int k, int D) {
    int m = 0;
#pragma unroll
    for (int i = 1; i < STREAMS; ++i) m += k >= i * D;
    return m;
}

// Streams that lie in memory.
struct Streams {
    const float* x;

    __device__ __forceinline__ Floats<4> four(i64 t, int D, int m, int d) const {
        return load_floats<4>(x + (t * STREAMS + m) * D + d);
    }
};

// post * z + sum over j of comb[j, m] x[j]
struct AfterBlock {
    const float *z, *x, *post, *comb;

    __device__ __forceinline__ Floats<4> four(i64 t, int D, int m, int d) const {
        const float* const from = comb + t * STREAMS * STREAMS + m;
        const Floats<4> branch = load_floats<4>(z + t * D + d);
        Floats<4> old[STREAMS], sum;
#pragma unroll
        for (int j = 0; j < STREAMS; ++j) old[j] = load_floats<4>(x + (t * STREAMS + j) * D + d);
        const float share = post[t * STREAMS + m];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            sum.at[e] = share * branch.at[e];
#pragma unroll
            for (int j = 0; j < STREAMS; ++j)
                sum.at[e] = fmaf(from[j * STREAMS], old[j].at[e], sum.at[e]);
        }
        return sum;
    }
};

// Every stream is the embedding of a token; a token that does not exist is a row of NaN.
struct Embedding {
    const bf16* table;
    const i32* tokens;
    int V;

    __device__ __forceinline__ Floats<4> four(i64 t, int D, int, int d) const {
        const i32 id = tokens[t];
        Floats<4> value;
        if (id < 0 || id >= V) {
            for (int e = 0; e < 4; ++e) value.at[e] = NAN_F32;
            return value;
        }
        const uint2 raw = *(const uint2*)(table + (i64)id * D + d);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 word = e < 2 ? raw.x : raw.y;
            value.at[e] = bf16_to_f32((bf16)(word >> 16 * (e % 2)));
        }
        return value;
    }
};

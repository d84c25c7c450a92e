// Where the residual streams of a token come from, element by element.
//
// Build constants: STREAMS.
#pragma once

#include "common/convert.cuh"
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

    __device__ __forceinline__ float element(i64 t, int D, int k) const {
        return x[t * STREAMS * D + k];
    }
};

// post * z + sum over j of comb[j, m] x[j]
struct AfterBlock {
    const float *z, *x, *post, *comb;
    __device__ __forceinline__ float element(i64 t, int D, int k) const {
        const int m = stream_of(k, D), d = k - m * D;
        const float* const old = x + t * STREAMS * D + d;
        const float* const from = comb + t * STREAMS * STREAMS + m;
        float sum = post[t * STREAMS + m] * z[t * D + d];
#pragma unroll
        for (int j = 0; j < STREAMS; ++j) sum = fmaf(from[j * STREAMS], old[(i64)j * D], sum);
        return sum;
    }
};

// Every stream is the embedding of a token; a token that does not exist is a row of NaN.
struct Embedding {
    const bf16* table;
    const i32* tokens;
    int V;
    __device__ __forceinline__ float element(i64 t, int D, int k) const {
        const i32 id = tokens[t];
        return id >= 0 && id < V ? bf16_to_f32(table[(i64)id * D + k - stream_of(k, D) * D])
                                 : NAN_F32;
    }
};

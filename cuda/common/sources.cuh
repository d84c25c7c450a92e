// Where the residual streams of a token come from: element by element for a product, and column by
// column for their collapse.
//
// For columns a row's streams can be fetched to shared memory before: `fetch` starts the copies, thread
// `thread` of `threads` its share; rows start on 16 bytes then. `column` reads there when GATHER is not
// 0.
//
// Build constants: STREAMS, GATHER.
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/math.cuh"

// Which stream element k of a row is in: a few comparisons, no division.
__device__ __forceinline__ int stream_of(int k, int D) {
    int m = 0;
#pragma unroll
    for (int i = 1; i < STREAMS; ++i) m += k >= i * D;
    return m;
}

// Streams that lie in memory; as other blocks of the same launch may have written them.
struct Streams {
    const float* x;

    __device__ __forceinline__ float element(i64 t, int D, int k) const {
        return x[t * STREAMS * D + k];
    }
    __device__ __forceinline__ void fetch(float* tile, i64 t, int D, int thread,
                                          int threads) const {
        const float* const from = x + t * STREAMS * D;
        for (int i = 4 * thread; i < STREAMS * D; i += 4 * threads) cp_async16(tile + i, from + i);
    }
    __device__ __forceinline__ void column(const float* tile, i64 t, int D, int d,
                                           float (&v)[STREAMS]) const {
#pragma unroll
        for (int m = 0; m < STREAMS; ++m)
            v[m] = GATHER == 0 ? __ldcg(x + (t * STREAMS + m) * D + d) : tile[m * D + d];
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

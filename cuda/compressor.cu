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
// The order of the sums is that of common/pool.cuh, with PARTS threads for a channel.
#include "common/pool.cuh"

#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef PARTS
#define PARTS 1
#endif

constexpr int THREADS = 128;
constexpr int CHANNELS = THREADS / PARTS;

using Rows = RawRows<OVERLAP>;

// Whole block of threads; threads past the last channel take part in the barriers only.
__device__ __forceinline__ void pool(const Rows& rows, i32 channel, float* y) {
    const float value = pooled<PARTS, CHANNELS>(rows, channel);
    if (channel < rows.K && threadIdx.x < CHANNELS) *y = value;
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

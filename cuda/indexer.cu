// indexer: how much each compressed block matters to each query
//
//   score[t,n] = sum over h of max(0, q[t,h,:] . keys[n,:]) * weights[t,h] * wscale   for n < visible[t]
//
//   q [T, H, K]    keys [N, K]    weights f32 [T, H]    visible i32 [T]    score f32 [T, N]
//
//   indexer_score        q and keys f32; everything in f64, one rounding at the store
//   indexer_score_f32    q and keys bf16; products on tensor cores, everything in f32
//
// Blocks from visible[t] on score minus infinity; a count below 0 shows none, one above N all. The
// clamp comes before the weight, and weights are signed. A NaN product stays NaN.
//
// Order, of indexer_score_f32 as in common/index_scores.cuh, of indexer_score so: a product is one chain
// of fma over k, ascending from 0. Lane l of a warp takes heads l, l + 32, ... of a key: it adds their
// weighted products ascending, by fma, and the lanes fold by the xor butterfly. Nothing depends on T,
// on N, or on how keys are shared out.
//
// indexer_score: one block of 8 warps takes 8 KEYS_PER_WARP keys of one query: 64 heads and these keys
// lie in shared memory, 64 columns at a time, so a query is read once for that many keys. A lane holds
// the sums of 2 heads for all keys of its warp. Shared rows are 4 floats longer than they need be, so
// that the 32 heads of a warp's load fall on different banks.
//
// indexer_score_f32: the blocks of a query share out its keys by the warp's 32, in turns.
#include "common/copy.cuh"
#include "common/index_scores.cuh"
#include "common/scan.cuh"

#ifndef KEYS_PER_WARP
#define KEYS_PER_WARP 4
#endif

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;
constexpr int KEYS = WARPS * KEYS_PER_WARP;
constexpr int ROOM_HEADS = 64;  // together in shared memory
constexpr int COLUMNS = 64;     // likewise
constexpr int PITCH = COLUMNS + 4;

static_assert((KEYS_PER_WARP & (KEYS_PER_WARP - 1)) == 0 && KEYS_PER_WARP <= 32,
              "KEYS_PER_WARP must be a power of two up to 32");

// `rows` rows of a tile from column k on; zeros past the last row and the last column.
__device__ __forceinline__ void load_tile(const float* from, i32 there, i32 rows, i32 k, i32 K,
                                          float* tile) {
    constexpr int VECTORS = COLUMNS / 4;
    for (int i = threadIdx.x; i < rows * VECTORS; i += THREADS) {
        const i32 row = i / VECTORS, column = i % VECTORS * 4;
        const bool inside = row < there && k + column < K;
        cp_async16_or_zero(tile + row * PITCH + column,
                           from + (inside ? (i64)row * K + k + column : 0), inside);
    }
}

__device__ __forceinline__ double multiply_add(float a, float b, double c) {
    return fma((double)a, (double)b, c);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    indexer_score(const float* q, const float* keys, const float* weights, const i32* visible,
                  float* score, i32 H, i32 K, i32 N, float wscale) {
    __shared__ __align__(16) float q_tile[ROOM_HEADS * PITCH];
    __shared__ __align__(16) float key_tile[KEYS * PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 first = blockIdx.x * KEYS, shown = min(visible[blockIdx.y], N);
    score += (i64)blockIdx.y * N;
    if (first >= shown) {
        for (i32 n = first + threadIdx.x; n < min(first + KEYS, N); n += THREADS)
            score[n] = -INF_F32;
        return;
    }
    q += (i64)blockIdx.y * H * K;
    keys += (i64)first * K;
    weights += (i64)blockIdx.y * H;

    double total[KEYS_PER_WARP] = {};
    for (i32 head = 0; head < H; head += ROOM_HEADS) {
        double product[2][KEYS_PER_WARP] = {};
        for (i32 k = 0; k < K; k += COLUMNS) {
            __syncthreads();
            load_tile(q + (i64)head * K, H - head, ROOM_HEADS, k, K, q_tile);
            load_tile(keys, N - first, KEYS, k, K, key_tile);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads();
#pragma unroll 2
            for (int c = 0; c < COLUMNS; c += 4) {
                float4 a[2];
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    a[h] = *(const float4*)(q_tile + (lane + 32 * h) * PITCH + c);
#pragma unroll
                for (int n = 0; n < KEYS_PER_WARP; ++n) {
                    const float4 b = *(const float4*)(key_tile +
                                                      (warp * KEYS_PER_WARP + n) * PITCH + c);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        double& sum = product[h][n];
                        sum = multiply_add(a[h].x, b.x, sum);
                        sum = multiply_add(a[h].y, b.y, sum);
                        sum = multiply_add(a[h].z, b.z, sum);
                        sum = multiply_add(a[h].w, b.w, sum);
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i32 of = head + lane + 32 * h;
            if (of >= H) continue;
            const double weight = (double)weights[of] * (double)wscale;
#pragma unroll
            for (int n = 0; n < KEYS_PER_WARP; ++n) {
                const double positive = product[h][n] <= 0 ? 0.0 : product[h][n];
                total[n] = fma(positive, weight, total[n]);
            }
        }
    }
    const float mine = (float)warp_sums(total);
    constexpr int LANES = 32 / KEYS_PER_WARP;  // that end up with the same key
    const i32 n = first + warp * KEYS_PER_WARP + lane / LANES;
    if (lane % LANES == 0 && n < N) score[n] = n < shown ? mine : -INF_F32;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    indexer_score_f32(const bf16* q, const bf16* keys, const float* weights, const i32* visible,
                      float* score, i32 N, float wscale) {
    __shared__ Heads heads;
    const i64 row = blockIdx.y;
    const i32 shown = min(visible[row], N);
    const i32 first = (blockIdx.x + gridDim.x * (threadIdx.x / 32)) * WARP_KEYS;
    score += row * N;
    HeadsOnWay<THREADS> on_way;
    on_way.load(q + row * HEADS * WIDTH, weights + row * HEADS);
    Keys key;
    if (first < shown) load_keys(keys, first, shown, key);
    for (i32 n = max(shown, 0) + blockIdx.x * THREADS + threadIdx.x; n < N;
         n += gridDim.x * THREADS)
        score[n] = -INF_F32;
    on_way.keep(wscale, heads);
    __syncthreads();
    score_turns(keys, first, gridDim.x * WARPS * WARP_KEYS, shown, heads, key,
                [&](i32 n, float made) { score[n] = made; });
}

// attention: a softmax over listed rows and a sink; a row is key and value at once
//
//   l[s] = scale * sum over k of q[t,h,k] * kv[ids[t,s],k]
//   o[t,h,:] = sum over s of e^l[s] * kv[ids[t,s],:] / (sum over s of e^l[s] + e^sink[h])
//
//   q f32 [T, H, K]    kv f32 [N, K]    ids i32 [T, S], rows ids_stride apart    sink f32 [H]
//   o f32 [T, H, K]    K is DIM, fixed at build time
//
//   attention_sink         everything in f64, one rounding at the store
//   attention_sink_f32     everything in f32
//   attention_sink_split   the same sums of one chunk of the list a block: few rows, much hardware
//   attention_sink_join    its chunks together; with _f32 at the end the f32 forms of both
//
// An id outside 0 .. N-1 is absent. A list without any present entry gives zeros, and so does a row
// whose logits and sink are all minus infinity.
//
// Order. Absent entries are dropped first, wherever they stand; what is left is cut into chunks of
// CHUNK in list order. A logit is summed by a warp: lane i takes k = 4 i .. 4 i + 3, then 128 on,
// ascending, by fma; the lanes fold by the xor butterfly; times scale. A chunk's values are summed
// by fma in list order from 0, its weights by a warp. Chunks are folded ascending. So a row's bytes
// depend on its own present entries alone: not on T, on padding, or on which kernel computed them.
//
// Weights are y * 2^p (common/exponent.cuh), relative to the largest p of the chunk, so that joining
// chunks multiplies by powers of two only and does not round.
//
// One block of 10 warps takes 8 heads of one query, so a row that is loaded serves 8 heads: 640 rows
// and 64 heads are 16 x 8 blocks, one for each multiprocessor of a large GPU. Rows lie in shared
// memory once, for the logits and for the values.
#include "common/copy.cuh"
#include "common/exponent.cuh"
#include "common/probe.cuh"
#include "common/scan.cuh"

#ifndef DIM
#define DIM 512
#endif
static_assert(DIM % 4 == 0 && DIM >= 4 && DIM <= 512, "K must be a multiple of 4 up to 512");

constexpr int HEADS = 8;              // of one block
constexpr int CHUNK = CHUNK_ENTRIES;  // a build constant: dsv4/kernels/attention.py
constexpr int WARP_ROWS = 4;
constexpr int THREADS = CHUNK / WARP_ROWS * 32;
constexpr int VECTORS = DIM / 4;
constexpr int PER_THREAD = 4;  // list entries a thread looks at in one step

static_assert(WARP_ROWS * HEADS <= 32, "a lane keeps one logit of its warp");
static_assert(DIM / 2 <= THREADS, "a thread sums two columns");

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(float a, float b, double c) {
    return fma((double)a, (double)b, c);
}
__device__ __forceinline__ double multiply_add(double a, float b, double c) {
    return fma(a, (double)b, c);
}

// What the threads of a block share beside the rows themselves.
template <class Real>
struct Board {
    Real weight[CHUNK][HEADS];  // logits first
    Real power[HEADS];          // of the chunk, or how far to scale what was summed before
    Real total[HEADS];          // of the chunk, or how far to scale the chunk
    i32 rows[CHUNK];
    i32 scratch[32];
};

// The entries that a walk along the list has passed for good, and how many of them were present.
struct Walk {
    i32 entries, present;
};

// Puts the rows of chunk number `chunk` into board.rows; returns how many there are.
template <class Real>
__device__ __forceinline__ i32 gather(const i32* ids, i32 S, i32 N, i32 chunk, Walk& walk,
                                      Board<Real>& board) {
    const i32 first = chunk * CHUNK;
    i32 found = walk.present;
    while (walk.entries < S) {
        i32 id[PER_THREAD], mine = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const i32 entry = walk.entries + threadIdx.x * PER_THREAD + i;
            id[i] = entry < S ? ids[entry] : -1;
            mine += (u32)id[i] < (u32)N;
        }
        i32 here;
        i32 rank = walk.present + block_count_before(mine, board.scratch, here) - first;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            if ((u32)id[i] >= (u32)N) continue;
            if (rank >= 0 && rank < CHUNK) board.rows[rank] = id[i];
            ++rank;
        }
        found = walk.present + here;
        if (found >= first + CHUNK) break;  // the next chunk may begin in this step
        walk.present = found;
        walk.entries += THREADS * PER_THREAD;
    }
    __syncthreads();
    return min(found - first, CHUNK);
}

// The query's heads, zero past the last one.
__device__ __forceinline__ void load_heads(const float* q, i32 heads, float* tile) {
    for (int i = threadIdx.x; i < HEADS * VECTORS; i += THREADS) {
        const bool there = i / VECTORS < heads;
        cp_async16_or_zero(tile + 4 * i, q + (there ? 4 * i : 0), there);
    }
}

// A chunk's rows, with zeros up to a whole number of warps.
__device__ __forceinline__ void load_rows(const float* kv, const i32* rows, i32 count,
                                          float* tile) {
    const i32 whole = (count + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS;
    for (int i = threadIdx.x; i < whole * VECTORS; i += THREADS) {
        const i32 row = i / VECTORS, column = i % VECTORS * 4;
        const bool there = row < count;
        cp_async16_or_zero(tile + 4 * i, kv + (i64)(there ? rows[row] : 0) * DIM + column, there);
    }
}

// Logits of 4 rows and 8 heads a warp, by all its lanes. In f64 4 heads at a time: twice as many sums
// would not fit the registers.
template <class Real>
__device__ __forceinline__ void find_logits(const float* q, const float* kv, i32 count, Real scale,
                                            Board<Real>& board) {
    constexpr int TOGETHER = sizeof(Real) == 4 ? HEADS : HEADS / 2;
    constexpr int SUMS = WARP_ROWS * TOGETHER;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * WARP_ROWS;
    if (row >= count) return;
#pragma unroll 1
    for (int head = 0; head < HEADS; head += TOGETHER) {
        Real sum[SUMS] = {};
#pragma unroll 1
        for (int k = 4 * lane; k < DIM; k += 128) {
            float4 b[WARP_ROWS];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) b[r] = *(const float4*)(kv + (row + r) * DIM + k);
#pragma unroll
            for (int h = 0; h < TOGETHER; ++h) {
                const float4 a = *(const float4*)(q + (head + h) * DIM + k);
#pragma unroll
                for (int r = 0; r < WARP_ROWS; ++r) {
                    Real& s = sum[r * TOGETHER + h];
                    s = multiply_add(a.x, b[r].x, s);
                    s = multiply_add(a.y, b[r].y, s);
                    s = multiply_add(a.z, b[r].z, s);
                    s = multiply_add(a.w, b[r].w, s);
                }
            }
        }
        const Real logit = warp_sums(sum) * scale;
        const int which = lane / (32 / SUMS);
        if (lane % (32 / SUMS) == 0)
            board.weight[row + which / TOGETHER][head + which % TOGETHER] = logit;
    }
}

// A chunk's logits by query and head, then by place among the present entries.
template <class Real>
__device__ __forceinline__ void probe_logits(i64 query, i32 heads, i32 chunk, i32 count, i32 S,
                                             const Board<Real>& board) {
    for (int i = threadIdx.x; i < count * HEADS; i += THREADS) {
        const int row = i / HEADS, head = i % HEADS;
        if (head < heads)
            PROBE("logit", (query + head) * S + chunk * CHUNK + row, board.weight[row][head]);
    }
}

// Logits become weights relative to the largest power of the chunk, a warp a head; returns that
// power and the weights' sum on every lane of the warp.
template <class Real>
__device__ __forceinline__ Real weigh(i32 count, Board<Real>& board, Real& total) {
    const int lane = threadIdx.x % 32, head = threadIdx.x / 32;
    constexpr int TURNS = (CHUNK + 31) / 32;
    Real y[TURNS], power[TURNS], top = no_power<Real>();
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int row = lane + 32 * i;
        y[i] = 0;
        power[i] = no_power<Real>();
        if (row < count) y[i] = exp_scaled(board.weight[row][head], power[i]);
        if (power[i] > top) top = power[i];
    }
    top = warp_max(top);
    Real mine = 0;
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const int row = lane + 32 * i;
        const Real weight = scaled(y[i], power[i] - top);
        if (row < count) board.weight[row][head] = weight;
        mine += weight;
    }
    total = warp_sum(mine);
    return top;
}

// The chunk's values for 8 heads and two columns.
template <class Real>
__device__ __forceinline__ void sum_values(const float* kv, i32 count, const Board<Real>& board,
                                           Real (&value)[HEADS][2]) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) value[h][0] = value[h][1] = 0;
    if (threadIdx.x >= DIM / 2) return;
#pragma unroll 8
    for (int row = 0; row < count; ++row) {
        const float2 v = *(const float2*)(kv + row * DIM + 2 * threadIdx.x);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            value[h][0] = multiply_add(board.weight[row][h], v.x, value[h][0]);
            value[h][1] = multiply_add(board.weight[row][h], v.y, value[h][1]);
        }
    }
}

// A sum over the chunks so far and its power. A chunk without weight changes nothing, not even the
// sign of a zero: padding must not show.
template <class Real>
__device__ __forceinline__ Real fold(Real sum, Real sum_fade, Real chunk, Real chunk_fade) {
    return chunk_fade == no_power<Real>() ? sum : scaled(sum, sum_fade) + scaled(chunk, chunk_fade);
}

// How far to scale down the sum so far and the chunk to meet at the larger power, which is returned.
template <class Real>
__device__ __forceinline__ Real meet(Real power, Real chunk_power, Real& fade, Real& chunk_fade) {
    const Real top = power > chunk_power ? power : chunk_power;
    fade = power - top;
    chunk_fade = chunk_power == no_power<Real>() ? chunk_power : chunk_power - top;
    return top;
}

// The denominator with the sink in it, and how far to scale the values down to meet it.
template <class Real>
__device__ __forceinline__ Real denominator(Real power, Real total, float sink, Real& fade,
                                            i64 row) {
    Real sink_power, sink_fade;
    const Real y = exp_scaled((Real)sink, sink_power);
    const Real top = meet(power, sink_power, fade, sink_fade);
    const Real below = fold(total, fade, y, sink_fade);
    PROBED(if (below > 0) PROBE("log2_denominator", row, log2((double)below) + (double)top);)
    return below;
}

template <class Real>
__device__ __forceinline__ float divided(Real value, Real fade, Real below) {
    return below == 0 ? 0.0f : (float)(scaled(value, fade) / below);
}

template <class Real>
__device__ __forceinline__ void whole_list(const float* q, const float* kv, const i32* ids,
                                           const float* sink, float* o, i32 H, i32 N, i32 S,
                                           i64 ids_stride, float scale) {
    extern __shared__ __align__(16) float tiles[];
    __shared__ Board<Real> board;
    float* rows = tiles + HEADS * DIM;
    const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 first_head = blockIdx.y * HEADS;
    const i64 query = (i64)blockIdx.x * H + first_head;
    ids += blockIdx.x * ids_stride;
    load_heads(q + query * DIM, H - first_head, tiles);

    Real sum[HEADS][2] = {};
    Real power = no_power<Real>(), total = 0;  // of the head that this warp weighs
    Walk walk = {0, 0};
    for (i32 chunk = 0;; ++chunk) {
        const i32 count = gather(ids, S, N, chunk, walk, board);
        if (count <= 0) break;
        load_rows(kv, board.rows, count, rows);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        find_logits<Real>(tiles, rows, count, scale, board);
        __syncthreads();
        PROBED(probe_logits(query, H - first_head, chunk, count, S, board); __syncthreads();)
        if (head < HEADS) {
            Real here, fade, chunk_fade;
            const Real top = weigh(count, board, here);
            power = meet(power, top, fade, chunk_fade);
            total = fold(total, fade, here, chunk_fade);
            if (lane == 0) {
                board.power[head] = fade;
                board.total[head] = chunk_fade;
            }
        }
        __syncthreads();
        Real value[HEADS][2];
        sum_values(rows, count, board, value);
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                sum[h][i] = fold(sum[h][i], board.power[h], value[h][i], board.total[h]);
        if (count < CHUNK) break;
    }
    cp_async_wait<0>();
    __syncthreads();
    if (head < HEADS && first_head + head < H) {
        Real fade;
        const Real below = denominator(power, total, sink[first_head + head], fade, query + head);
        if (lane == 0) {
            board.power[head] = fade;
            board.total[head] = below;
        }
    }
    __syncthreads();
    if (threadIdx.x >= DIM / 2) return;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first_head + h >= H) break;
        const Real fade = board.power[h], below = board.total[h];
        *(float2*)(o + (query + h) * DIM + 2 * threadIdx.x) = make_float2(
            divided(sum[h][0], fade, below), divided(sum[h][1], fade, below));
    }
}

template <class Real>
__device__ __forceinline__ void one_chunk(const float* q, const float* kv, const i32* ids,
                                          Real* power, Real* total, Real* value, i32 H, i32 N,
                                          i32 S, i64 ids_stride, float scale) {
    extern __shared__ __align__(16) float tiles[];
    __shared__ Board<Real> board;
    float* rows = tiles + HEADS * DIM;
    const int head = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 first_head = blockIdx.y * HEADS;
    const i64 query = (i64)blockIdx.z * H + first_head;
    const i64 at = ((i64)blockIdx.z * gridDim.x + blockIdx.x) * H + first_head;
    load_heads(q + query * DIM, H - first_head, tiles);

    Walk walk = {0, 0};
    const i32 found = gather(ids + blockIdx.z * ids_stride, S, N, blockIdx.x, walk, board);
    const i32 count = max(found, 0);
    load_rows(kv, board.rows, count, rows);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    find_logits<Real>(tiles, rows, count, scale, board);
    __syncthreads();
    PROBED(probe_logits(query, H - first_head, blockIdx.x, count, S, board); __syncthreads();)
    if (head < HEADS) {
        Real here;
        const Real top = weigh(count, board, here);
        if (lane == 0 && first_head + head < H) {
            power[at + head] = top;
            total[at + head] = here;
        }
    }
    __syncthreads();
    Real sum[HEADS][2];
    sum_values(rows, count, board, sum);
    if (threadIdx.x >= DIM / 2) return;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first_head + h >= H) break;
        Real* to = value + (at + h) * DIM + 2 * threadIdx.x;
        to[0] = sum[h][0];
        to[1] = sum[h][1];
    }
}

// One block a query and head; a thread sums four columns.
template <class Real>
__device__ __forceinline__ void join_chunks(const Real* power, const Real* total, const Real* value,
                                            const float* sink, float* o, i32 B, i32 H) {
    const int column = 4 * threadIdx.x;
    const i64 query = (i64)blockIdx.x * H + blockIdx.y;
    Real sum[4] = {}, all = 0, reached = no_power<Real>();
    if (column >= DIM) return;
#pragma unroll 4
    for (i32 chunk = 0; chunk < B; ++chunk) {
        const i64 at = ((i64)blockIdx.x * B + chunk) * H + blockIdx.y;
        const Real* from = value + at * DIM + column;
        Real fade, chunk_fade;
        reached = meet(reached, power[at], fade, chunk_fade);
        all = fold(all, fade, total[at], chunk_fade);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = fold(sum[i], fade, from[i], chunk_fade);
    }
    Real fade;
    const Real below = denominator(reached, all, sink[blockIdx.y], fade, query);
    *(float4*)(o + query * DIM + column) = make_float4(
        divided(sum[0], fade, below), divided(sum[1], fade, below), divided(sum[2], fade, below),
        divided(sum[3], fade, below));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_sink(const float* q, const float* kv, const i32* ids, const float* sink, float* o,
                   i32 H, i32 N, i32 S, i64 ids_stride, float scale) {
    whole_list<double>(q, kv, ids, sink, o, H, N, S, ids_stride, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_sink_f32(const float* q, const float* kv, const i32* ids, const float* sink, float* o,
                       i32 H, i32 N, i32 S, i64 ids_stride, float scale) {
    whole_list<float>(q, kv, ids, sink, o, H, N, S, ids_stride, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_sink_split(const float* q, const float* kv, const i32* ids, double* power,
                         double* total, double* value, i32 H, i32 N, i32 S, i64 ids_stride,
                         float scale) {
    one_chunk<double>(q, kv, ids, power, total, value, H, N, S, ids_stride, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_sink_split_f32(const float* q, const float* kv, const i32* ids, float* power,
                             float* total, float* value, i32 H, i32 N, i32 S, i64 ids_stride,
                             float scale) {
    one_chunk<float>(q, kv, ids, power, total, value, H, N, S, ids_stride, scale);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_sink_join(const double* power, const double* total, const double* value,
                        const float* sink, float* o, i32 B, i32 H) {
    join_chunks<double>(power, total, value, sink, o, B, H);
}

extern "C" __global__ void __launch_bounds__(128)
    attention_sink_join_f32(const float* power, const float* total, const float* value,
                            const float* sink, float* o, i32 B, i32 H) {
    join_chunks<float>(power, total, value, sink, o, B, H);
}

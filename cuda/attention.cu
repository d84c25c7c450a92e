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
// The order of the sums is that of common/sink.cuh, the same for all of them.
//
// One block of 10 warps takes 8 heads of one query, so a row that is loaded serves 8 heads: 640 rows
// and 64 heads are 16 x 8 blocks, one for each multiprocessor of a large GPU. Rows lie in shared
// memory once, for the logits and for the values.
#include "common/sink.cuh"

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

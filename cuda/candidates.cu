// candidates_topk: the K largest elements of every row and where they are
//
//   x f32 [T, V]    values f32 [T, K]    ids i32 [T, K]    falling values, equal ones by rising index
//
// One block a row, K passes over it: pass j takes the first element, in the order above, behind the
// one of pass j - 1. Each thread looks at a strided share; the block's best is a total order over
// (value, index), so which thread looks where does not show. K is small and a row stays in the L2
// cache. +0 equals -0; NaN comes behind every number, in rising order of index.
#include "common/reduce.cuh"

constexpr int THREADS = 512;

__device__ __forceinline__ bool is_nan(float v) { return v != v; }

// Whether (value, index) comes behind the last taken one.
__device__ __forceinline__ bool behind(float value, i32 index, Best last) {
    if (is_nan(value) != is_nan(last.value)) return is_nan(value);
    if (!is_nan(value) && value != last.value) return value < last.value;
    return index > last.index;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    candidates_topk(const float* x, float* values, i32* ids, i32 V, i32 K) {
    __shared__ Best scratch[32];
    const float* row = x + (i64)blockIdx.x * V;
    Best last = {INF_F32, -1};
    for (i32 j = 0; j < K; ++j) {
        Best best = {NAN_F32, 2147483647};
        for (i32 i = threadIdx.x; i < V; i += THREADS)
            if (behind(row[i], i, last)) best = reduce::ArgMax::fold(best, {row[i], i});
        last = block_argmax(best.value, best.index, scratch);
        if (threadIdx.x == 0) {
            values[(i64)blockIdx.x * K + j] = row[last.index];
            ids[(i64)blockIdx.x * K + j] = last.index;
        }
    }
}

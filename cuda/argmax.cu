// argmax: y[t] = the first index of the largest x[t,:]
//
//   x f32 [T, V]    y i32 [T]
//
// One block a row. A thread walks its share in ascending order and keeps the first of its largest;
// the block then folds by (larger value, lower index), a total order, so neither threads nor timing
// can change the result. +0 equals -0. NaN never beats a number, not even -inf; a row of NaN
// gives 0. Nothing is rounded.
#include "common/copy.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 1024;

// Keeps `best` unless value is a number that exceeds it; an empty best is NaN, which any exceeds.
__device__ __forceinline__ void consider(Best& best, float value, i32 index) {
    if (value == value && !(value <= best.value)) best = {value, index};
}

extern "C" __global__ void __launch_bounds__(THREADS) argmax(const float* x, i32* y, i32 V) {
    __shared__ Best scratch[32];
    const float* row = x + (i64)blockIdx.x * V;
    Best best = {NAN_F32, 0};

    // 16 bytes a load where the row starts on 16: always, when V is a multiple of 4.
    const i32 vectors = ((u64)row & 15) == 0 ? V / 4 : 0;
#pragma unroll 4
    for (i32 i = threadIdx.x; i < vectors; i += THREADS) {
        const uint4 four = load16(row + 4 * i);
        consider(best, __uint_as_float(four.x), 4 * i);
        consider(best, __uint_as_float(four.y), 4 * i + 1);
        consider(best, __uint_as_float(four.z), 4 * i + 2);
        consider(best, __uint_as_float(four.w), 4 * i + 3);
    }
    for (i32 i = 4 * vectors + threadIdx.x; i < V; i += THREADS) consider(best, row[i], i);

    // A thread that saw no number offers NaN at 0, which only a row without numbers lets win.
    best = block_argmax(best.value, best.index, scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = best.index;
}

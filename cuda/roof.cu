// roof: y[b] = the xor of all words of block b's share of x: the fastest read there is
//
//   x i32 [N]    y i32 [B], one a block of the launch
//
// What a kernel that streams its weights could reach: nothing is computed that could hold a load
// back. x is cut into B contiguous spans of whole 16-byte vectors, the last of which may be short or
// empty; words after the last whole vector belong to the last block. A thread has LOADS vectors on
// their way before it uses the first. Xor has no order, so neither has the result.
//
// Build constants: THREADS, LOADS.
#include "common/copy.cuh"
#include "common/reduce.cuh"

struct Xor {
    static __device__ __forceinline__ i32 empty() { return 0; }
    static __device__ __forceinline__ i32 fold(i32 a, i32 b) { return a ^ b; }
};

__device__ __forceinline__ u32 folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

extern "C" __global__ void __launch_bounds__(THREADS)
    roof_read(const i32* __restrict__ x, i32* __restrict__ y, i64 N) {
    __shared__ i32 scratch[32];
    const i64 vectors = N >> 2;
    const i64 span = (vectors + gridDim.x - 1) / gridDim.x;
    const i64 begin = blockIdx.x * span;
    const i64 end = begin + span < vectors ? begin + span : vectors;
    u32 bits = 0;
    i64 i = begin + threadIdx.x;
    // Whole rounds have no condition between their loads, so that all of them are sent first.
    for (; i + (LOADS - 1) * THREADS < end; i += LOADS * THREADS) {
        uint4 vector[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; ++n) vector[n] = load16_once(x + 4 * (i + n * THREADS));
#pragma unroll
        for (int n = 0; n < LOADS; ++n) bits ^= folded(vector[n]);
    }
    for (; i < end; i += THREADS) bits ^= folded(load16_once(x + 4 * i));
    const i64 rest = 4 * vectors + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < N) bits ^= (u32)x[rest];
    bits = (u32)reduce::over_block<Xor>((i32)bits, scratch);
    if (threadIdx.x == 0) y[blockIdx.x] = (i32)bits;
}

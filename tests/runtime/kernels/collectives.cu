// Every warp and block collective, one answer a column, so that NumPy can say what is right.
#include "common/types.cuh"

constexpr u32 all_lanes = 0xffffffffu;

// out [threads, 16]
extern "C" __global__ void warp_collectives(const i32* x, i32* out) {
    const i32 thread = threadIdx.x + blockDim.x * threadIdx.y;
    const i32 value = x[thread];
    const i32 lane = thread & 31;
    i32* mine = out + 16 * thread;
    mine[0] = __shfl_sync(all_lanes, value, 5);
    mine[1] = __shfl_sync(all_lanes, value, lane + 3);
    mine[2] = __shfl_up_sync(all_lanes, value, 3);
    mine[3] = __shfl_down_sync(all_lanes, value, 3);
    mine[4] = __shfl_xor_sync(all_lanes, value, 9);
    mine[5] = __shfl_sync(all_lanes, value, 5, 8);
    mine[6] = __shfl_up_sync(all_lanes, value, 3, 8);
    mine[7] = __shfl_down_sync(all_lanes, value, 3, 8);
    mine[8] = __shfl_xor_sync(all_lanes, value, 9, 8);
    mine[9] = (i32)__ballot_sync(all_lanes, value & 1);
    mine[10] = __any_sync(all_lanes, value == x[thread - lane]);
    mine[11] = __all_sync(all_lanes, value > 0);
    mine[12] = (i32)__match_any_sync(all_lanes, value & 3);
    mine[13] = __reduce_add_sync(all_lanes, value);
    mine[14] = __reduce_max_sync(all_lanes, value);
    mine[15] = (i32)__reduce_xor_sync(all_lanes, (u32)value);
}

// Only the lanes of a mask take part; out [threads, 3]
extern "C" __global__ void masked_collectives(const i32* x, i32* out) {
    const i32 thread = threadIdx.x;
    const bool low = (thread & 31) < 12;
    const u32 mask = low ? 0x00000fffu : 0xfffff000u;
    i32* mine = out + 3 * thread;
    if (low) {
        mine[0] = __shfl_xor_sync(mask, x[thread], 1);
        mine[1] = (i32)__ballot_sync(mask, x[thread] & 1);
        __syncwarp(mask);
    } else {
        mine[0] = -__shfl_xor_sync(mask, x[thread], 1);
        mine[1] = (i32)__ballot_sync(mask, x[thread] & 1);
    }
    mine[2] = (i32)__reduce_min_sync(all_lanes, x[thread]);
}

// out [threads, 3]
extern "C" __global__ void block_collectives(const i32* x, i32* out) {
    i32* mine = out + 3 * threadIdx.x;
    mine[0] = __syncthreads_or(x[threadIdx.x] == 77);
    mine[1] = __syncthreads_and(x[threadIdx.x] < 50);
    mine[2] = __syncthreads_count(x[threadIdx.x] & 1);
}

extern "C" __global__ void shuffle_types(float* f, double* d, i64* l, u64* u, u32* w) {
    const i32 thread = threadIdx.x;
    f[thread] = __shfl_xor_sync(all_lanes, f[thread], 1);
    d[thread] = __shfl_xor_sync(all_lanes, d[thread], 1);
    l[thread] = __shfl_xor_sync(all_lanes, l[thread], 1);
    u[thread] = __shfl_xor_sync(all_lanes, u[thread], 1);
    w[thread] = __shfl_xor_sync(all_lanes, w[thread], 1);
}

// Which thread and block each place was written by; out [blocks, threads, 6]
extern "C" __global__ void indices(i32* out) {
    const i32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const i32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const i32 threads = blockDim.x * blockDim.y * blockDim.z;
    i32* mine = out + 6 * (block * threads + thread);
    mine[0] = blockIdx.x;
    mine[1] = blockIdx.y;
    mine[2] = blockIdx.z;
    mine[3] = threadIdx.x;
    mine[4] = threadIdx.y;
    mine[5] = threadIdx.z;
}

// Says of every block whether its first warp passed 32 barriers before its second one passed two.
extern "C" __global__ void far_ahead(i32* ahead) {
    __shared__ i32 passed;
    if (threadIdx.x == 0) passed = 0;
    __syncthreads();
    const int rounds = threadIdx.x < 32 ? 32 : 2;
    for (int i = 0; i < rounds; ++i) __syncwarp();
    if (threadIdx.x == 32) passed = 1;
    if (threadIdx.x == 0) ahead[blockIdx.x] = passed == 0;
}

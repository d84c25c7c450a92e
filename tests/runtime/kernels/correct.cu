// Kernels without a fault: check mode must stay silent and every order must give the same bytes.
#include "common/copy.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void reverse(const float* x, float* y) {
    extern __shared__ float row[];
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void shift_repeatedly(const float* x, float* y) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    for (int step = 0; step < 4; ++step) {
        __syncthreads();
        const float neighbour = row[(threadIdx.x + 1) % 128];
        __syncthreads();
        row[threadIdx.x] = neighbour;
    }
    y[threadIdx.x] = row[threadIdx.x];
}

extern "C" __global__ void swap_lanes(const float* x, float* y) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    const float neighbour = row[threadIdx.x ^ 1];
    __syncwarp();
    row[threadIdx.x] = neighbour + 1.0f;
    __syncwarp();
    y[threadIdx.x] = row[threadIdx.x ^ 1];
}

// Bytes of one word belong to different threads.
extern "C" __global__ void interleave_bytes(const float* x, float* y) {
    __shared__ u8 bytes[512];
    for (int i = 0; i < 4; ++i) bytes[128 * i + threadIdx.x] = (u8)x[threadIdx.x];
    __syncthreads();
    const u32 word = reinterpret_cast<const u32*>(bytes)[threadIdx.x];
    y[threadIdx.x] = (float)(word & 255) + (float)(word >> 24);
}

// Two reductions in a row through the same scratch memory.
extern "C" __global__ void normalise(const float* x, float* y) {
    __shared__ float scratch[32];
    const float value = x[threadIdx.x];
    const float largest = block_max(value, scratch);
    const float sum = block_sum(value / largest, scratch);
    y[threadIdx.x] = value / largest / sum;
}

extern "C" __global__ void two_stage_copy(const float* x, float* y) {
    __shared__ __align__(16) float stage[2][128];
    const int t = threadIdx.x;
    if (t < 32) cp_async16(&stage[0][4 * t], &x[4 * t]);
    cp_async_commit();
    float sum = 0.0f;
    for (int part = 0; part < 6; ++part) {
        const int next = (part + 1) % 2;
        if (t < 32) cp_async16_or_zero(&stage[next][4 * t], &x[4 * t], part % 2 == 0);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        sum += stage[part % 2][127 - t] * (float)(part + 1);
        __syncthreads();
    }
    cp_async_wait<0>();
    y[t] = sum;
}

// The last block to arrive adds up what all blocks left, behind a fence and a counter.
extern "C" __global__ void sum_by_last_block(const float* x, float* y, float* partial, u32* count) {
    __shared__ float scratch[32];
    __shared__ bool last;
    const float sum = block_sum(x[threadIdx.x] * (float)(blockIdx.x + 1), scratch);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(count, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    float total = 0.0f;
    for (u32 i = 0; i < gridDim.x; ++i) total += partial[i];
    y[threadIdx.x] = total;
}

extern "C" __global__ void count_values(const float* x, float* y, u32* count) {
    __shared__ u32 local[8];
    if (threadIdx.x < 8) local[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&local[(u32)x[threadIdx.x] % 8], 1u);
    __syncthreads();
    if (threadIdx.x < 8) atomicAdd(&count[threadIdx.x], local[threadIdx.x]);
    y[threadIdx.x] = (float)local[threadIdx.x % 8];
}

// Whole blocks may return early.
extern "C" __global__ void skip_blocks(const float* x, float* y) {
    __shared__ float scratch[32];
    if (blockIdx.x > 0) return;
    y[threadIdx.x] = block_sum(x[threadIdx.x], scratch);
}

// Every reduction of common/reduce.cuh.
#include "common/reduce.cuh"

// out [blocks * threads, 4]
extern "C" __global__ void float_reductions(const float* x, float* out) {
    __shared__ float scratch[32];
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    float* mine = out + 4 * i;
    mine[0] = warp_sum(x[i]);
    mine[1] = warp_max(x[i]);
    mine[2] = block_sum(x[i], scratch);
    mine[3] = block_max(x[i], scratch);
}

extern "C" __global__ void double_reductions(const double* x, double* out) {
    __shared__ double scratch[32];
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    double* mine = out + 4 * i;
    mine[0] = warp_sum(x[i]);
    mine[1] = warp_max(x[i]);
    mine[2] = block_sum(x[i], scratch);
    mine[3] = block_max(x[i], scratch);
}

extern "C" __global__ void integer_reductions(const i32* x, i32* out) {
    __shared__ i32 scratch[32];
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    i32* mine = out + 4 * i;
    mine[0] = warp_sum(x[i]);
    mine[1] = warp_max(x[i]);
    mine[2] = block_sum(x[i], scratch);
    mine[3] = block_max(x[i], scratch);
}

// Values and indices: out, index [blocks * threads, 2]
extern "C" __global__ void argmax_reductions(const float* x, float* out, i32* index) {
    __shared__ Best scratch[32];
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    const Best of_warp = warp_argmax(x[i], threadIdx.x);
    const Best of_block = block_argmax(x[i], threadIdx.x, scratch);
    out[2 * i] = of_warp.value;
    index[2 * i] = of_warp.index;
    out[2 * i + 1] = of_block.value;
    index[2 * i + 1] = of_block.index;
}

// A block of two dimensions: threads count x first.
extern "C" __global__ void planar_sum(const float* x, float* out) {
    __shared__ float scratch[32];
    const i32 i = threadIdx.x + blockDim.x * threadIdx.y;
    out[i] = block_sum(x[i], scratch);
}

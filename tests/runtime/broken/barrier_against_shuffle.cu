// Half of a warp waits at the block's barrier, the other half in a shuffle for all lanes.
extern "C" __global__ void broken(const float* x, float* y) {
    float value = x[threadIdx.x];
    if (threadIdx.x % 32 < 16) {
        __syncthreads();  // FAULT
    } else {
        value = __shfl_xor_sync(0xffffffffu, value, 1);
        __syncthreads();
    }
    y[threadIdx.x] = value;
}

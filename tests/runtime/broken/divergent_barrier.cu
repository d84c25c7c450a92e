// One warp waits at a barrier of its own.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 32) {
        __syncthreads();  // FAULT
        y[threadIdx.x] = row[threadIdx.x + 32];
    } else {
        __syncthreads();
        y[threadIdx.x] = row[threadIdx.x - 32];
    }
}

// Threads past the end return before the barrier that the rest of the block waits at.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[128];
    if (threadIdx.x >= 100) return;
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();  // FAULT
    y[threadIdx.x] = row[99 - threadIdx.x];
}

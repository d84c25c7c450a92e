// Thread 0 publishes a total that the others read without waiting for it.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[128];
    __shared__ float total;
    row[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 64) total = 0.0f;
    __syncthreads();
    if (threadIdx.x == 64)
        for (int i = 0; i < 128; ++i) total += row[i];  // FAULT
    y[threadIdx.x] = total;
}

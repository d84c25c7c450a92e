// Shifts a row four times; nothing keeps a fast thread from overwriting what a slow one still reads.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int step = 0; step < 4; ++step) {
        const float neighbour = row[(threadIdx.x + 1) % 128];
        row[threadIdx.x] = neighbour;  // FAULT
        __syncthreads();
    }
    y[threadIdx.x] = row[threadIdx.x];
}

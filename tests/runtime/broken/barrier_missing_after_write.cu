// Reverses a row through shared memory, without the barrier between writing and reading it.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[128];
    row[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = row[127 - threadIdx.x];  // FAULT
}

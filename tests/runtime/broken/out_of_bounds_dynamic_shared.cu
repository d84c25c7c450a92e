// Uses twice the dynamic shared memory that the launch asks for.
extern "C" __global__ void broken(const float* x, float* y) {
    extern __shared__ float row[];
    row[2 * threadIdx.x] = x[threadIdx.x];  // FAULT
    y[threadIdx.x] = row[2 * threadIdx.x];
}

// Starts the next copy into a buffer that other threads still read.
#include "common/copy.cuh"

extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ __align__(16) float row[128];
    float sum = 0.0f;
    for (int part = 0; part < 2; ++part) {
        const int from = part == 0 ? threadIdx.x : 31 - threadIdx.x;
        if (threadIdx.x < 32) cp_async16(&row[4 * threadIdx.x], &x[4 * from]);  // FAULT
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        sum += row[127 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}

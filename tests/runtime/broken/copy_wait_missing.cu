// Reads what an asynchronous copy brings without waiting for it.
#include "common/copy.cuh"

extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ __align__(16) float row[128];
    if (threadIdx.x < 32) cp_async16(&row[4 * threadIdx.x], &x[4 * threadIdx.x]);
    cp_async_commit();
    __syncthreads();
    y[threadIdx.x] = row[threadIdx.x];  // FAULT
}

// Loads four floats from an address that is not a multiple of 16.
#include "common/copy.cuh"

extern "C" __global__ void broken(const float* x, float* y) {
    const uint4 four = load16(x + threadIdx.x % 8);  // FAULT
    y[threadIdx.x] = __uint_as_float(four.w);
}

// The access stands in a helper of a header; the fault must name the kernel's line.
#include "common/copy.cuh"

extern "C" __global__ void broken(const float* x, float* y) {
    const uint4 four = load16(x + 4 * threadIdx.x);  // FAULT
    y[threadIdx.x] = __uint_as_float(four.x);
}

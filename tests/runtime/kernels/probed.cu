// Doubles x and probes every value on the way.
#include "common/probe.cuh"

extern "C" __global__ void doubled(const float* x, float* y) {
    const float value = 2.0f * x[threadIdx.x];
    PROBE("doubled", threadIdx.x, value);
    y[threadIdx.x] = value;
}

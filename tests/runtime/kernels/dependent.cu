// Dependent launches: y[i] = w[i] * x[i], where w is steady and x is what the kernel before writes.
#include "common/overlap.cuh"

extern "C" __global__ void sound(const float* w, const float* x, float* y) {
    let_next_start();
    const float weight = w[threadIdx.x];
    wait_for_previous();
    y[threadIdx.x] = weight * x[threadIdx.x];
}

// It passes on what was there before it.
extern "C" __global__ void passes_on(const float* w, const float* x, float* y) {
    const float weight = w[threadIdx.x];
    wait_for_previous();
    let_next_start();
    y[threadIdx.x] = weight * x[threadIdx.x];
}

extern "C" __global__ void starts_next_early(const float* w, const float* x, float* y) {
    let_next_start();  // starts_next_early
    wait_for_previous();
    y[threadIdx.x] = w[threadIdx.x] * x[threadIdx.x];
}

extern "C" __global__ void reads_early(const float* w, const float* x, float* y) {
    const float value = x[threadIdx.x];  // reads_early
    wait_for_previous();
    y[threadIdx.x] = w[threadIdx.x] * value;
}

extern "C" __global__ void writes_early(const float* w, const float* x, float* y) {
    y[threadIdx.x] = w[threadIdx.x];  // writes_early
    wait_for_previous();
    y[threadIdx.x] *= x[threadIdx.x];
}

extern "C" __global__ void waits_in_one_thread(const float* w, const float* x, float* y) {
    if (threadIdx.x == 0) wait_for_previous();
    __syncthreads();
    y[threadIdx.x] = w[threadIdx.x] * x[threadIdx.x];  // waits_in_one_thread
}

extern "C" __global__ void never_waits(const float* w, const float* x, float* y) {
    if (blockIdx.x == 0) wait_for_previous();
    if (blockIdx.x == 0) y[threadIdx.x] = w[threadIdx.x] * x[threadIdx.x];
}

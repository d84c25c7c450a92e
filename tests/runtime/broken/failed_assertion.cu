// States something that does not hold for every thread.
extern "C" __global__ void broken(const float* x, float* y) {
    assert(threadIdx.x < 100);  // FAULT
    y[threadIdx.x] = x[threadIdx.x];
}

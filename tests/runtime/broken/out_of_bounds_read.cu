// Reads one element past the end of x.
extern "C" __global__ void broken(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x + 1];  // FAULT
}

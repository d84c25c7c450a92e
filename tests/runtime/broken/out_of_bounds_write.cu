// Writes one element before the start of y.
extern "C" __global__ void broken(const float* x, float* y) {
    y[(int)threadIdx.x - 1] = x[threadIdx.x];  // FAULT
}

// Clears its input on the way.
extern "C" __global__ void broken(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    const_cast<float*>(x)[threadIdx.x] = 0.0f;  // FAULT
}

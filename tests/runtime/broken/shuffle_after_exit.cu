// Lanes return before a shuffle whose mask names them.
extern "C" __global__ void broken(const float* x, float* y) {
    if (threadIdx.x % 32 >= 24) return;
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);  // FAULT
}

// Sums a row of shared memory whose last element nobody wrote.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[129];
    row[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 129; ++i) sum += row[i];  // FAULT
    y[threadIdx.x] = sum;
}

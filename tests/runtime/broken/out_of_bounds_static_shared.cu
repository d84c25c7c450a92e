// Runs over the end of one shared array into its neighbour.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[64];
    __shared__ float neighbour[128];
    neighbour[threadIdx.x] = 0.0f;
    __syncthreads();
    row[threadIdx.x] = x[threadIdx.x];  // FAULT
    __syncthreads();
    y[threadIdx.x] = row[threadIdx.x] + neighbour[threadIdx.x];
}

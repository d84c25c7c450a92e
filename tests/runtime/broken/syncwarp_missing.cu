// Lanes exchange values through shared memory as if a warp still ran in lockstep.
extern "C" __global__ void broken(const float* x, float* y) {
    __shared__ float row[32];
    row[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    const float neighbour = row[threadIdx.x ^ 1];  // FAULT
    row[threadIdx.x] = neighbour + 1.0f;
    __syncwarp();
    y[threadIdx.x] = row[threadIdx.x ^ 1];
}

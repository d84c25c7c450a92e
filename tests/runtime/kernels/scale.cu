// One argument of every sort, for the checks before a launch.
extern "C" __global__ void scale(const float* x, float* y, int n, double by,
                                 const unsigned short* bits) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (float)(x[i] * by) + bits[0];
}

// The conversions of common/convert.cuh, element by element.
#include "common/convert.cuh"

extern "C" __global__ void map_f32_to_e4m3(const float* x, u8* y) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = f32_to_e4m3(x[i]);
}

// cast: y[i] = x[i] rounded to bf16
//
//   x f32 [N]    y bf16 [N]
//
// One thread an element, no reduction. Nearest-even from f32; NaN stays NaN, subnormals are kept,
// values past the largest bf16 round to infinity as IEEE says.
#include "common/convert.cuh"

extern "C" __global__ void __launch_bounds__(256) cast_bf16(const float* x, bf16* y, i64 N) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < N) y[i] = f32_to_bf16(x[i]);
}

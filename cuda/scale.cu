// scale: factors on rows
//
//   scale_softcap  y = factor x, and cap tanh(factor x / cap) where cap > 0    x, y f32 [T, D]
//   scale_gate     y = x / (1 + e^-gate)    gate f32 [T, D], rows gate_stride apart
//
// One thread an element, in f64, rounded once. tanh z = (1 - e) / (1 + e) with e = e^-2|z|, or its
// series where |z| < 0.01, since 1 - e cancels there.
#include "common/math.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ double tanh_f64(double z) {
    const double size = fabs(z);
    if (size < 0.01) {
        const double square = z * z;
        double q = fma(square, -17.0 / 315.0, 2.0 / 15.0);
        q = fma(q, square, -1.0 / 3.0);
        return fma(z * square, q, z);
    }
    const double e = exp_f64(-2.0 * size), y = (1.0 - e) / (1.0 + e);
    return z < 0.0 ? -y : y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_softcap(const float* x, float* y, i32 D, float factor, float cap) {
    const i32 column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const i64 at = (i64)blockIdx.x * D + column;
    const double scaled = (double)x[at] * (double)factor;
    y[at] = (float)(cap > 0.0f ? (double)cap * tanh_f64(scaled / (double)cap) : scaled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_gate(const float* x, const float* gate, float* y, i32 D, i64 gate_stride) {
    const i32 column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const i64 at = (i64)blockIdx.x * D + column;
    y[at] = (float)((double)x[at] /
                    (1.0 + exp_f64(-(double)gate[blockIdx.x * gate_stride + column])));
}

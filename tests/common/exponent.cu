// The functions of common/exponent.cuh, element by element.
#include "common/exponent.cuh"

extern "C" __global__ void map_exp_scaled(const float* x, float* y, float* power) {
    y[blockIdx.x] = exp_scaled(x[blockIdx.x], power[blockIdx.x]);
}
extern "C" __global__ void map_exp_scaled_f64(const double* x, double* y, double* power) {
    y[blockIdx.x] = exp_scaled(x[blockIdx.x], power[blockIdx.x]);
}
extern "C" __global__ void map_scaled(const float* x, const float* power, float* y) {
    y[blockIdx.x] = scaled(x[blockIdx.x], power[blockIdx.x]);
}
extern "C" __global__ void map_scaled_f64(const double* x, const double* power, double* y) {
    y[blockIdx.x] = scaled(x[blockIdx.x], power[blockIdx.x]);
}

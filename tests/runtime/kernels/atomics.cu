// Atomic updates of every kind and type that the kernels may use.
#include "common/types.cuh"

extern "C" __global__ void integer_atomics(const i32* x, i32* i, u32* u, u64* l) {
    const i32 value = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd(&i[0], value);
    atomicSub(&i[1], value);
    atomicMax(&i[2], value);
    atomicMin(&i[3], value);
    atomicAnd(&u[0], ~(1u << (value & 31)));
    atomicOr(&u[1], 1u << (value & 31));
    atomicXor(&u[2], (u32)value);
    atomicInc(&u[3], 6);
    atomicDec(&u[4], 6);
    atomicAdd(&l[0], (u64)value << 32);
    atomicMax(&l[1], (u64)value << 32);
    if (atomicCAS(&i[4], -1, value) == -1) i[5] = value;
    if (value == 3) atomicExch(&i[6], 33);
}

extern "C" __global__ void float_atomics(const float* x, float* f, double* d) {
    atomicAdd(&f[0], x[blockIdx.x * blockDim.x + threadIdx.x]);
    atomicAdd(&d[0], (double)x[blockIdx.x * blockDim.x + threadIdx.x]);
}

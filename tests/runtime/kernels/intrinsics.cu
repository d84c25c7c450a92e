// Intrinsics whose answers IEEE or the CUDA documentation fixes.
#include "common/math.cuh"

// out [n, 10]
extern "C" __global__ void float_intrinsics(const float* a, const float* b, float* out, i32 n) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float* mine = out + 10 * i;
    mine[0] = fmaxf(a[i], b[i]);
    mine[1] = fminf(a[i], b[i]);
    mine[2] = __fadd_rn(a[i], b[i]);
    mine[3] = __fmul_rn(a[i], b[i]);
    mine[4] = __fdiv_rn(a[i], b[i]);
    mine[5] = __fsqrt_rn(a[i]);
    mine[6] = __frsqrt_rn(a[i]);
    mine[7] = __fmaf_rn(a[i], b[i], 1.0f);
    mine[8] = a[i] * b[i] + 1.0f;
    mine[9] = max(a[i], b[i]);
}

// out [n, 6]
extern "C" __global__ void to_integer(const float* a, i32* out, i64* wide, i32 n) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[6 * i] = __float2int_rn(a[i]);
    out[6 * i + 1] = __float2int_rz(a[i]);
    out[6 * i + 2] = __float2int_rd(a[i]);
    out[6 * i + 3] = __float2int_ru(a[i]);
    out[6 * i + 4] = (i32)__float2uint_rn(a[i]);
    out[6 * i + 5] = __double2int_rz((double)a[i]);
    wide[i] = __float2ll_rz(a[i]);
}

// out [n, 8]
extern "C" __global__ void integer_intrinsics(const u32* a, const u32* b, u32* out, i32 n) {
    const i32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u32* mine = out + 8 * i;
    mine[0] = __popc(a[i]);
    mine[1] = __clz((i32)a[i]);
    mine[2] = __ffs((i32)a[i]);
    mine[3] = __brev(a[i]);
    mine[4] = __byte_perm(a[i], b[i], 0x9072);
    mine[5] = __funnelshift_l(a[i], b[i], 7);
    mine[6] = __umulhi(a[i], b[i]);
    mine[7] = min(a[i], b[i]);
}

extern "C" __global__ void constants(float* f, double* d) {
    f[0] = INF_F32;
    f[1] = NAN_F32;
    f[2] = MAX_F32;
    d[0] = INF_F64;
    d[1] = NAN_F64;
}

extern "C" __global__ void exact_exponential(const float* x, float* y, i64 n) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = exp_exact(x[i]);
}

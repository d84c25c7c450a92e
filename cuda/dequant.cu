// dequant: stored weights as bf16, y[n,k] = code[n,k] * scale of its block (* scale2)
//
//   dequant_fp8_block   codes e4m3 [N, K]      scales ue8m0 [ceil(N/128), ceil(K/128)]
//   dequant_mxfp4       codes e2m1x2 [N, K/2]  scales ue8m0 [N, K/32]
//   dequant_nvfp4       codes e2m1x2 [N, K/2]  scales e4m3 [N, K/16]  scale2 f32 [1]
//                       each: y bf16 [N, K]    inexact i32 [1], counted up
//   dequant_ue8m0       codes ue8m0 [N]        y f32 [N]
//
// No sums, so no order: a thread makes neighbouring elements on its own. Each element is the exact
// product, rounded once, at the store. An element whose bf16 is not finite or not the exact product
// adds one to `inexact`: a checkpoint that is dequantised without loss leaves it as it was. The
// count is an integer, so the order of the additions does not matter. An e2m1 byte holds the even
// element in its low nibble.
#include "common/convert.cuh"

#ifndef WIDTH
#define WIDTH 16  // codes that dequant_fp8_block loads at once: 16 when every row starts aligned
#endif
static_assert(WIDTH == 16 || WIDTH == 1, "WIDTH is 16 for K a multiple of 16, else 1");

constexpr int BLOCK = 128;  // side of an fp8 scale block
constexpr int THREADS = 256;

template <typename T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};

// The bf16 of an f32 that is exact or was rounded to odd: either way no rounding happens twice.
__device__ __forceinline__ bf16 narrow(u32 bits, bool exact, int& lost) {
    lost += !exact || (bits & 0xffffu) != 0 || (bits & 0x7f800000u) == 0x7f800000u;
    return f32_to_bf16(__uint_as_float(bits));
}

// value * power: exact in f32, or infinite, or NaN.
__device__ __forceinline__ bf16 scaled(float value, float power, int& lost) {
    return narrow(__float_as_uint(value * power), true, lost);
}

// value * scale, a product that f32 may have to round. An inexact product is rounded to odd: of its
// two neighbours the one with the last bit set, which no later rounding mistakes for a tie.
// `lift` keeps what the product lost clear of underflow.
__device__ __forceinline__ bf16 scaled_twice(float value, float scale, float lift, int& lost) {
    const float product = value * scale;
    const float rest = fmaf(value * lift, scale, -(product * lift));
    u32 bits = __float_as_uint(product);
    if (fabsf(rest) > 0.0f && (bits & 1u) == 0)
        bits += (__float_as_uint(rest) ^ bits) >> 31 ? ~0u : 1u;  // towards what was lost
    return narrow(bits, rest == 0.0f, lost);
}

// One block of threads per 128 x 128 block of weights: one scale, a thread WIDTH codes of a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_fp8_block(const u8* codes, const u8* scales, bf16* y, i32* inexact, i32 N, i32 K) {
    constexpr int LANES = BLOCK / WIDTH;
    const int column = blockIdx.x * BLOCK + threadIdx.x % LANES * WIDTH;
    const float scale = e8m0_to_f32(scales[(i64)blockIdx.y * gridDim.x + blockIdx.x]);
    const int end = min(N, (int)(blockIdx.y + 1) * BLOCK);
    int lost = 0;
    if (column < K) {
        for (int row = blockIdx.y * BLOCK + threadIdx.x / LANES; row < end;
             row += THREADS / LANES) {
            const i64 at = (i64)row * K + column;
            const Pack<u8, WIDTH> in = *(const Pack<u8, WIDTH>*)(codes + at);
            Pack<bf16, WIDTH> out;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) out.at[i] = scaled(e4m3_to_f32(in.at[i]), scale, lost);
            *(Pack<bf16, WIDTH>*)(y + at) = out;
        }
    }
    if (lost) atomicAdd(inexact, lost);
}

// One block a row and 2048 columns; a thread takes 4 bytes, 8 elements, which share a scale.
extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_mxfp4(const u8* codes, const u8* scales, bf16* y, i32* inexact, i32 N, i32 K) {
    const int column = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (column >= K) return;
    const i64 at = (i64)blockIdx.x * K + column;
    const u32 packed = *(const u32*)(codes + at / 2);
    const float scale = e8m0_to_f32(scales[at / 32]);
    int lost = 0;
    Pack<bf16, 8> out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out.at[i] = scaled(e2m1_to_f32(packed >> 4 * i), scale, lost);
    *(Pack<bf16, 8>*)(y + at) = out;
    if (lost) atomicAdd(inexact, lost);
}

// As dequant_mxfp4. e2m1 * e4m3 is exact in f32 (6 bits); times scale2 it has up to 30.
extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_nvfp4(const u8* codes, const u8* scales, const float* scale2, bf16* y, i32* inexact,
                  i32 N, i32 K) {
    const int column = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (column >= K) return;
    const i64 at = (i64)blockIdx.x * K + column;
    const u32 packed = *(const u32*)(codes + at / 2);
    const float scale = e4m3_to_f32(scales[at / 16]);
    const float second = scale2[0];
    // e2m1 * e4m3 is below 2^12 and a multiple of 2^-10. With |scale2| < 1 the lifted product stays
    // finite and its last bit is at 2^(-10 - 149 + 40); from 1 up nothing is near underflow.
    const float lift = fabsf(second) < 1.0f ? 0x1p40f : 1.0f;
    int lost = 0;
    Pack<bf16, 8> out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        out.at[i] = scaled_twice(e2m1_to_f32(packed >> 4 * i) * scale, second, lift, lost);
    *(Pack<bf16, 8>*)(y + at) = out;
    if (lost) atomicAdd(inexact, lost);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_ue8m0(const u8* codes, float* y, i64 N) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < N) y[i] = e8m0_to_f32(codes[i]);
}

// hadamard: x[t,:] = scale * x[t,:] H in place, H[i,j] = (-1)^popcount(i & j)
//
//   x f32 [T, K]          K is WIDTH, a power of two from 2 to 1024, fixed at build time
//
// Sylvester's butterflies with h = 1, 2, 4, .. K/2: each takes elements j and j + h to their sum and
// their difference, so a result passes through log2(K) additions, each rounding, and one product
// with the scale. The bytes do not depend on how threads share the row.
//
// A warp takes one row, or several when they are short. A lane holds PER neighbouring elements:
// butterflies below PER stay in its registers, the others exchange with the lane h / PER away.
#include "common/butterflies.cuh"
#include "common/copy.cuh"

#ifndef WIDTH
#define WIDTH 128
#endif
static_assert(WIDTH >= 2 && WIDTH <= 1024 && (WIDTH & (WIDTH - 1)) == 0,
              "WIDTH must be a power of two from 2 to 1024");

constexpr int THREADS = 128;
constexpr int PER = WIDTH > 32 ? WIDTH / 32 : 1;
constexpr int LANES = WIDTH / PER;  // lanes that share a row
constexpr int ROWS_PER_BLOCK = THREADS / LANES;

extern "C" __global__ void __launch_bounds__(THREADS) hadamard(float* x, i32 T, float scale) {
    const i64 row = (i64)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / LANES;
    const int part = threadIdx.x % LANES;
    float* at = x + row * WIDTH + part * PER;
    alignas(16) float v[PER] = {};
    if (row < T) {
#pragma unroll
        for (int i = 0; i + 4 <= PER; i += 4) *(uint4*)(v + i) = load16(at + i);
#pragma unroll
        for (int i = PER / 4 * 4; i < PER; ++i) v[i] = at[i];
    }

    butterflies<LANES>(v, part);
    if (row >= T) return;
#pragma unroll
    for (int i = 0; i < PER; ++i) v[i] *= scale;
#pragma unroll
    for (int i = 0; i + 4 <= PER; i += 4) store16(at + i, *(uint4*)(v + i));
#pragma unroll
    for (int i = PER / 4 * 4; i < PER; ++i) at[i] = v[i];
}

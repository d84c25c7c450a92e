// Tensor-core tiles: c [M, N] = a [M, K] b, one warp, 16 x 8 outputs a block.
#include "common/copy.cuh"
#include "common/mma.cuh"

// b [K, N] row-major: its fragments come transposed.
extern "C" __global__ void tile_of_rows(const bf16* a, const bf16* b, float* c, i32 N, i32 K) {
    __shared__ __align__(16) bf16 tile_a[2][16][16];
    __shared__ __align__(16) bf16 tile_b[2][16][8];
    const i32 lane = threadIdx.x;
    const bf16* rows = a + (i64)blockIdx.y * 16 * K;
    const bf16* columns = b + blockIdx.x * 8;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (i32 step = -1; step < K / 16; ++step) {
        const i32 k = 16 * (step + 1);
        const i32 stage = (step + 1) & 1;
        const bool more = k < K;
        cp_async16_or_zero(&tile_a[stage][lane / 2][8 * (lane % 2)],
                           more ? &rows[(i64)(lane / 2) * K + k + 8 * (lane % 2)] : a, more);
        if (lane < 16)
            cp_async16_or_zero(&tile_b[stage][lane][0], more ? &columns[(i64)(k + lane) * N] : b,
                               more);
        cp_async_commit();
        if (step < 0) continue;
        cp_async_wait<1>();
        __syncthreads();
        u32 fragment_a[4], fragment_b[2];
        ldmatrix_x4(fragment_a, &tile_a[step & 1][lane % 16][8 * (lane / 16)]);
        ldmatrix_x2_trans(fragment_b, &tile_b[step & 1][lane % 16][0]);
        mma_bf16_16816(sum, fragment_a, fragment_b);
        __syncthreads();
    }
    float* out = c + (i64)(blockIdx.y * 16 + lane / 4) * N + blockIdx.x * 8 + 2 * (lane % 4);
    out[0] = sum[0];
    out[1] = sum[1];
    out[8 * (i64)N] = sum[2];
    out[8 * (i64)N + 1] = sum[3];
}

// One tile, a [16, 16] given transposed and b [8, 16] given by columns: the other two loads.
extern "C" __global__ void tile_of_columns(const bf16* a_transposed, const bf16* b_columns,
                                           float* c) {
    __shared__ __align__(16) bf16 tile_a[16][16];
    __shared__ __align__(16) bf16 tile_b[8][16];
    const i32 lane = threadIdx.x;
    store16(&tile_a[lane / 2][8 * (lane % 2)], load16(&a_transposed[8 * lane]));
    if (lane < 16) store16(&tile_b[lane / 2][8 * (lane % 2)], load16_once(&b_columns[8 * lane]));
    __syncthreads();
    u32 fragment_a[4], fragment_b[2];
    // Matrices in fragment order: rows 0-7, rows 8-15, then the same for columns 8-15.
    ldmatrix_x4_trans(fragment_a, &tile_a[lane % 8 + 8 * (lane / 16)][8 * (lane / 8 % 2)]);
    ldmatrix_x2(fragment_b, &tile_b[lane % 8][8 * (lane / 8 % 2)]);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma_bf16_16816(sum, fragment_a, fragment_b);
    float* out = c + 8 * (lane / 4) + 2 * (lane % 4);
    out[0] = sum[0];
    out[1] = sum[1];
    out[64] = sum[2];
    out[65] = sum[3];
}

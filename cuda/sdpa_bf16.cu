// sdpa_bf16: grouped-query attention on tensor cores, all rows over the same keys
//
//   q f32 [T, H, K]    k, v f32 [N, G, K]    y f32 [T, H, K]    query head h reads key head h / (H/G)
//   y = sum p_j v_j,  p = softmax(scale q . k_j),  j = 0 .. last - 1.  Without keys, zeros.
//   q, k and v are rounded to bf16 first: that is the definition, and what makes it another one
//   than sdpa's.
//
// One block of four warps takes 16 rows of a query head, and keys in tiles of 64. A warp scores 16
// keys for all rows with m16n8k16 products over the lanes; each row's maximum and sum are one
// warp's; weights are rounded to bf16, and summed as rounded, so that they still add up to one. A
// warp then adds every fourth group of 8 lanes of the values, which lie transposed. The running
// sums are rescaled once a tile.
//
// A NaN score, or one of +inf, makes its row NaN. Keys from `last` on are not read.
#include "common/convert.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

constexpr int ROWS = 16, KEYS = 64, WARPS = 4;
constexpr int PAD = 8;  // rows begin in other banks
constexpr int GROUPS = (WIDTH / 8 + WARPS - 1) / WARPS;

static_assert(WIDTH % 16 == 0, "a product adds 16 lanes");
static_assert(WIDTH <= 128, "keys and values of a tile must fit into 48 KiB");

__device__ __forceinline__ u32 two(const bf16* at) { return *reinterpret_cast<const u32*>(at); }

// d += rows [16, K] of a times rows [8, K] of b transposed, K in steps of 16.
template <int A_STRIDE, int B_STRIDE>
__device__ __forceinline__ void multiply(float (&d)[4], const bf16* a, const bf16* b, int length) {
    const int group = (threadIdx.x % 32) / 4, pair = threadIdx.x % 4;
    for (int k = 2 * pair; k < length; k += 16) {
        const bf16* top = a + group * A_STRIDE + k;
        const bf16* low = top + 8 * A_STRIDE;
        const u32 left[4] = {two(top), two(low), two(top + 8), two(low + 8)};
        const bf16* column = b + group * B_STRIDE + k;
        const u32 right[2] = {two(column), two(column + 8)};
        mma_bf16_16816(d, left, right);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    sdpa_bf16(const float* q, const float* k, const float* v, float* y, i32 T, i32 H, i32 N, i32 G,
              i32 last, float scale) {
    __shared__ __align__(16) bf16 own[ROWS][WIDTH + PAD], keys[KEYS][WIDTH + PAD];
    __shared__ __align__(16) bf16 values[WIDTH][KEYS + PAD], weight[ROWS][KEYS + PAD];
    __shared__ float scores[ROWS][KEYS + 4], factor[ROWS], sums[ROWS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int group = lane / 4, pair = lane % 4, first_row = blockIdx.x * ROWS, head = blockIdx.y;
    const i64 key_stride = (i64)G * WIDTH, at_head = (i64)(head / (H / G)) * WIDTH;
    for (int i = thread; i < ROWS * WIDTH; i += 32 * WARPS) {
        const int row = first_row + i / WIDTH;
        const float value = row < T ? q[((i64)row * H + head) * WIDTH + i % WIDTH] : 0.0f;
        own[i / WIDTH][i % WIDTH] = f32_to_bf16(value);
    }

    float top[ROWS / WARPS], total[ROWS / WARPS], sum[GROUPS][4] = {};
#pragma unroll
    for (int i = 0; i < ROWS / WARPS; ++i) top[i] = -INF_F32, total[i] = 0.0f;
    for (int tile = 0; tile < min(last, N); tile += KEYS) {
        const int seen = min(KEYS, min(last, N) - tile);
        for (int i = thread; i < KEYS * WIDTH; i += 32 * WARPS) {
            const int key = i / WIDTH, d = i % WIDTH;
            const i64 at = (tile + key) * key_stride + at_head + d;
            keys[key][d] = key < seen ? f32_to_bf16(k[at]) : (bf16)0;
            values[d][key] = key < seen ? f32_to_bf16(v[at]) : (bf16)0;
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = 16 * warp + 8 * half;
            float d[4] = {};
            multiply<WIDTH + PAD, WIDTH + PAD>(d, own[0], keys[key], WIDTH);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                scores[group + 8 * (i / 2)][key + 2 * pair + i % 2] = d[i] * scale;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROWS / WARPS; ++i) {
            const int row = warp * (ROWS / WARPS) + i;
            const float a = lane < seen ? scores[row][lane] : -INF_F32;
            const float b = lane + 32 < seen ? scores[row][lane + 32] : -INF_F32;
            // A NaN counts as infinity, so that it is not passed over by the maximum.
            const float most = fmaxf(a == a ? a : INF_F32, b == b ? b : INF_F32);
            const float now = fmaxf(top[i], warp_max(most));
            const bool none = now == -INF_F32;  // no score so far is above it
            const bf16 p = f32_to_bf16(none || lane >= seen ? 0.0f : exp_exact(a - now));
            const bf16 r = f32_to_bf16(none || lane + 32 >= seen ? 0.0f : exp_exact(b - now));
            weight[row][lane] = p;
            weight[row][lane + 32] = r;
            const float shrunk = none ? 1.0f : exp_exact(top[i] - now);
            total[i] = total[i] * shrunk + warp_sum(bf16_to_f32(p) + bf16_to_f32(r));
            top[i] = now;
            if (lane == 0) factor[row] = shrunk;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const int d = 8 * (warp + WARPS * i);
            if (d >= WIDTH) continue;  // the same for the whole warp
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[i][j] *= factor[group + 8 * (j / 2)];
            multiply<KEYS + PAD, KEYS + PAD>(sum[i], weight[0], values[d], KEYS);
        }
        __syncthreads();  // everything is read before the next tile is written
    }
#pragma unroll
    for (int i = 0; i < ROWS / WARPS; ++i)
        if (lane == 0) sums[warp * (ROWS / WARPS) + i] = total[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        const int d = 8 * (warp + WARPS * i) + 2 * pair;
        if (d >= WIDTH) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = group + 8 * (j / 2);
            if (first_row + row >= T) continue;
            const i64 at = ((i64)(first_row + row) * H + head) * WIDTH + d + j % 2;
            y[at] = sums[row] == 0.0f ? 0.0f : sum[i][j] / sums[row];
        }
    }
}

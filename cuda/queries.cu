// queries: both products of the queries' latent in one launch, the indexer's heads finished in it
//
//   y[m, n] = sum over k of w[n, k] * x[m, k]                      as linear_fp8
//   index_q[m, h, :] = FP4(Hadamard(rope(the same of index_codes)))  as linear_fp8, rope, hadamard and
//                                                                  act_quant_fp4_inplace
//
//   codes e4m3 [N, K], scales f32 [ceil(N / 128), ceil(K / 128)]    index_codes, index_scales likewise,
//   [H * D, K]    x bf16 [M, K]    table f32 [P, R]    positions i32 [M]    y f32 [M, N]
//   index_q bf16 [M, H, D], which hold what FP4 leaves; K is at most 1024; M is ROWS and D is WIDTH, fixed at build time
//
// The order of the sums is that of common/gemv.cuh. Of a block's passes of 8 TILES rows the first ones are
// one head of the indexer, while there are heads, and the others rows of w: so a head's sums meet in
// the shared memory of one block, all blocks stream alike, and no block waits for another. A warp then
// finishes the head for one row of x.
#include "common/fp8_weights.cuh"
#include "common/index_head.cuh"

constexpr int HEAD_PASSES = WIDTH / BLOCK_ROWS;

static_assert(SETS == 1, "rows of w are dealt in passes of one set");
static_assert(WIDTH % BLOCK_ROWS == 0 && HEAD_PASSES <= PASSES, "a block has one head at most");

// Rows 0 .. rows - 1 are those of w; the indexer's follow.
struct BothWeights : Fp8Weights {
    const u8* index_elements;
    const float* index_scales;

    __device__ __forceinline__ const u8* row_at(int row, int K) const {
        return row < rows ? elements + (i64)row * K : index_elements + (i64)(row - rows) * K;
    }
    __device__ __forceinline__ int rows_down(int, int n) const { return n; }
    __device__ __forceinline__ float scale_of(int row, int group) const {
        const float* const own = row < rows ? scales : index_scales;
        return own[(i64)((row < rows ? row : row - rows) >> 7) * columns + group];
    }
};

// A head of the indexer, then rows of w that no block before has.
struct HeadFirst {
    int rows, head, first_row;  // of w; of this block or -1; of w, in this block
    __device__ __forceinline__ int row_of(int pass) const {
        if (head < 0) return first_row + pass * BLOCK_ROWS;
        return pass < HEAD_PASSES ? rows + head * WIDTH + pass * BLOCK_ROWS
                                  : first_row + (pass - HEAD_PASSES) * BLOCK_ROWS;
    }
};

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, MIN_BLOCKS)
    queries_fp8(const u8* __restrict__ codes, const float* __restrict__ scales,
                const u8* __restrict__ index_codes, const float* __restrict__ index_scales,
                const bf16* x, const float* __restrict__ table, const i32* positions,
                float* __restrict__ y, bf16* __restrict__ index_q, int N, int K, int H, int R,
                int P, float scale) {
    __shared__ float heads[ROWS][WIDTH];
    constexpr int BESIDE = PASSES - HEAD_PASSES;  // passes over w in a block with a head
    const int block = blockIdx.x;
    const bool with_head = block < H;
    const int tile = with_head ? block * BESIDE : H * BESIDE + (block - H) * PASSES;
    const HeadFirst deal{N, with_head ? block : -1, tile * BLOCK_ROWS};
    const int own = with_head ? HEAD_PASSES : 0;
    const int passes = own + max(0, min(PASSES - own, N / BLOCK_ROWS - tile));
    let_next_start();
    const BothWeights weights{{codes, scales, N, (K + 127) / 128}, index_codes, index_scales};
    const Partial& partial = sum_passes<false>(weights, deal, {x, K, N, K}, passes);
    // On their way while the sums meet.
    const int first_m = threadIdx.x / 32;
    Angles<WIDTH> angles{};
    if (with_head && first_m < ROWS) angles.load(table, positions[first_m], R, P);
    __syncthreads();

    for (int i = threadIdx.x; i < own * BLOCK_ROWS * ROWS; i += GEMV_THREADS)
        heads[i / WIDTH][i % WIDTH] = sum_of_row(partial, i % WIDTH, i / WIDTH);
    const int count = (passes - own) * BLOCK_ROWS;
    for (int i = threadIdx.x; i < count * ROWS; i += GEMV_THREADS) {
        const int m = i / count, at = i % count;
        y[(i64)m * N + deal.first_row + at] = sum_of_row(partial, own * BLOCK_ROWS + at, m);
    }
    if (!with_head) return;
    __syncthreads();
    for (int m = first_m; m < ROWS; m += WARPS) {
        if (m != first_m) angles.load(table, positions[m], R, P);
        float v[WIDTH / 32];
        finish_index_head<WIDTH>(heads[m], angles, R, scale, v);
        bf16* const to = index_q + ((i64)m * H + block) * WIDTH + threadIdx.x % 32 * (WIDTH / 32);
#pragma unroll
        for (int i = 0; i < WIDTH / 32; ++i) to[i] = f32_to_bf16(v[i]);
    }
}

// island_dots: y[t,n] = sum over k of x[t,k] w[n,k], both sides true float32
//
//   island_dots            w f32 [N, K]     sums in f64
//   island_dots_f32        w f32 [N, K]     sums in f32
//   island_dots_bf16       w bf16 [N, K]    sums in f64
//   island_dots_bf16_f32   w bf16 [N, K]    sums in f32
//                          each: x f32 [T, K]    y f32 [T, N]
//
// The order of the sum is that of common/parts.cuh with PART_STEPS steps a part, which depends on N
// and K alone. So a row of x gives the same bytes alone, in any batch, and whatever shares the block
// with it, rows of w (what a "rowblock" kernel would be) included; and bf16 weights give the bytes
// of the same weights stored in f32. One rounding to f32 at the store when sums are f64.
//
// A block has ROWS rows of x and the GROUPS * WARP_ROWS rows of w that its warps share out: a group
// of warps deals the parts of K among them, a warp walks WARP_ROWS rows of w past all rows of x, so
// that each weight is loaded once. It issues the loads of BATCH steps before it uses the first. Rows
// past the end repeat the last one and are not stored. Tiles of x lie on the grid's x, which has no
// limit that matters, so that neighbouring blocks share weights through the L2 cache.
//
// Build constants: ROWS (1..8), PART_STEPS, PARTS, WARP_ROWS, WARPS (a multiple of GROUPS), GROUPS,
// BATCH.
#include "common/convert.cuh"
#include "common/parts.cuh"

constexpr int PIECE = 4;  // weights decoded together; more would cost registers
constexpr int GROUP_WARPS = WARPS / GROUPS;
constexpr int BLOCK_ROWS = GROUPS * WARP_ROWS;

static_assert(ROWS >= 1 && ROWS <= 8, "a block shares its weights among at most 8 rows of x");
static_assert(WARPS % GROUPS == 0 && WARPS <= 32, "every group needs the same number of warps");

struct F32Weights {
    const float* w;
    struct Chunk {
        uint4 half[2];
    };
    __device__ __forceinline__ Chunk load(i64 at) const {
        return {{load16_once(w + at), load16_once(w + at + PIECE)}};
    }
    static __device__ __forceinline__ void decode(const Chunk& chunk, int piece,
                                                  float (&v)[PIECE]) {
        const uint4 raw = chunk.half[piece];
        v[0] = __uint_as_float(raw.x);
        v[1] = __uint_as_float(raw.y);
        v[2] = __uint_as_float(raw.z);
        v[3] = __uint_as_float(raw.w);
    }
};

struct Bf16Weights {
    const bf16* w;
    using Chunk = uint4;
    __device__ __forceinline__ Chunk load(i64 at) const { return load16_once(w + at); }
    static __device__ __forceinline__ void decode(const Chunk& chunk, int piece,
                                                  float (&v)[PIECE]) {
        const u32 low = piece ? chunk.z : chunk.x, high = piece ? chunk.w : chunk.y;
        v[0] = __uint_as_float(low << 16);
        v[1] = __uint_as_float(low & 0xffff0000u);
        v[2] = __uint_as_float(high << 16);
        v[3] = __uint_as_float(high & 0xffff0000u);
    }
};

// Adds one step's 8 elements to every sum.
template <class Weights, class Sum>
__device__ __forceinline__ void add_step(const typename Weights::Chunk (&chunk)[WARP_ROWS],
                                         const float* x, const i64 (&row)[ROWS],
                                         Sum (&sum)[WARP_ROWS][ROWS]) {
#pragma unroll
    for (int piece = 0; piece < LANE_ELEMENTS / PIECE; ++piece) {
        float w[WARP_ROWS][PIECE];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) Weights::decode(chunk[r], piece, w[r]);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const Floats<PIECE> v = load_floats<PIECE>(x + row[m] + piece * PIECE);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
                for (int i = 0; i < PIECE; ++i)
                    sum[r][m] = multiply_add(w[r][i], v.at[i], sum[r][m]);
        }
    }
}

// The sums of one part over this lane's elements.
template <class Weights, class Sum>
__device__ __forceinline__ void walk_part(const Weights& weights, const float* x,
                                          const i64 (&row)[ROWS], int first_row, int part, int N,
                                          int K, Sum (&sum)[WARP_ROWS][ROWS]) {
    const int begin = part * PART_STEPS * STEP + threadIdx.x % 32 * LANE_ELEMENTS;
    const int end = min(K, (part + 1) * PART_STEPS * STEP);
    for (int k = begin; k < end; k += BATCH * STEP) {
        typename Weights::Chunk chunk[BATCH][WARP_ROWS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // Past the end the loads repeat the first ones, which is cheaper than not loading.
            const int here = k + b * STEP < end ? k + b * STEP : k;
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                chunk[b][r] = weights.load((i64)min(first_row + r, N - 1) * K + here);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int here = k + b * STEP;
            if (here < end) add_step<Weights>(chunk[b], x + here, row, sum);
        }
    }
}

template <class Sum, class Weights>
__device__ __forceinline__ void island(const float* x, const Weights& weights, float* y, int T,
                                       int N, int K) {
    __shared__ Sum partial[BLOCK_ROWS * ROWS][PARTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = warp / GROUP_WARPS;
    const int block_row = blockIdx.y * BLOCK_ROWS, first_row = block_row + group * WARP_ROWS;
    const int first_x = blockIdx.x * ROWS;
    i64 row[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; ++m) row[m] = (i64)min(first_x + m, T - 1) * K;

    for (int part = warp % GROUP_WARPS; part < PARTS; part += GROUP_WARPS) {
        Sum sum[WARP_ROWS][ROWS] = {};
        // A group past the last row only takes part in the barrier.
        if (first_row < N) walk_part(weights, x, row, first_row, part, N, K, sum);
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                const Sum total = warp_sum(sum[r][m]);
                const int n = first_row + r, t = first_x + m;
                if (lane != 0) continue;
                if (PARTS > 1)
                    partial[(group * WARP_ROWS + r) * ROWS + m][part] = total;
                else if (n < N && t < T)
                    y[(i64)t * N + n] = (float)total;
            }
    }
    if (PARTS == 1) return;
    __syncthreads();
    for (int i = warp; i < BLOCK_ROWS * ROWS; i += WARPS) {
        const Sum total = sum_of_parts(partial[i], PARTS, 1);
        const int n = block_row + i / ROWS, t = first_x + i % ROWS;
        if (lane == 0 && n < N && t < T) y[(i64)t * N + n] = (float)total;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots(const float* x, const float* w, float* y, i32 T, i32 N, i32 K) {
    island<double>(x, F32Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_f32(const float* x, const float* w, float* y, i32 T, i32 N, i32 K) {
    island<float>(x, F32Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_bf16(const float* x, const bf16* w, float* y, i32 T, i32 N, i32 K) {
    island<double>(x, Bf16Weights{w}, y, T, N, K);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    island_dots_bf16_f32(const float* x, const bf16* w, float* y, i32 T, i32 N, i32 K) {
    island<float>(x, Bf16Weights{w}, y, T, N, K);
}

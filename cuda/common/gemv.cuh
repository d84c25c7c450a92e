// A few rows of x past a weight matrix on tensor cores, shared by linear_bf16 and linear_fp8, so that
// equal weights give equal bytes whatever they are stored in.
//
//   y[m, n] = sum over k of w[n, k] * x[m, k]      w [N, K], x bf16 [ROWS, K], y f32 [ROWS, N]
//
// The weights are the tall operand of m16n8k16, the rows of x its eight columns. A column is computed
// from its own row of x alone, and columns past the rows repeat the last one and are dropped: so a row
// gives the same bytes whatever runs beside it.
//
// Order of the sum. K is cut into groups of 128, in which FP8 weights share a scale, and a group into
// two chunks of 64. In a chunk lane quarter q (lane % 4) has elements 16 q .. 16 q + 15, in one load
// of codes or two of bf16; product j of four takes the elements 16 q + 4 j .. + 3 of every quarter.
// The eight products of a group are chained in the tensor core from 0. Then group j belongs to part
// j % PARTS: its sum, times the weights' factor, is fused onto the part's, groups ascending; and the
// parts are added in ascending order. PARTS depends on K alone: the order does not change with N,
// with the rows of x, or with how rows of w are dealt out.
//
// A warp has one part of one set of 8 * TILES rows of w and walks its groups, pass after pass down the
// rows. Weights wait in shared memory, DEPTH groups of them, where only the thread reads that had them
// copied: so there is no barrier before the parts are added. A group goes to registers as a whole, and
// the one DEPTH further is on its way to the same place before the first product. The first DEPTH groups
// are on their way before the kernel before has ended. Of x a lane reads its elements from the
// cache a group ahead, where registers allow. Rows past N repeat the last one and are not stored; past K
// all is 0.
//
// Such a kernel waits for its own instructions as much as for memory: nothing in the loop divides, and
// addresses are constants apart or grow by constants.
//
// Build constants: ROWS (1..8), PARTS, SETS (of rows in a block), TILES (1, 2 or 4), PASSES, DEPTH;
// TAIL, 1 if K is no multiple of 128. A launch gives shared memory for the weights on their way, then
// for the sums of all parts.
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/overlap.cuh"
#include "common/reduce.cuh"

constexpr int GROUP = 128;
constexpr int CHUNK = 64;
constexpr int LANE_ELEMENTS = 16;
constexpr int PRODUCTS = CHUNK / 16;
constexpr int WARPS = PARTS * SETS;
constexpr int GEMV_THREADS = 32 * WARPS;
constexpr int SET_ROWS = 8 * TILES;
constexpr int BLOCK_ROWS = SETS * SET_ROWS;  // of one pass
constexpr int PAIRS = (TILES + 1) / 2;       // of eight rows each: what one product takes
constexpr int STEP = GROUP * PARTS;          // from a part's group to its next one
constexpr int MIN_BLOCKS = 16 / WARPS;       // on an SM
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr bool FACTORS_AHEAD = false;  // integers decode FP8 there, in those registers
#else
constexpr bool FACTORS_AHEAD = true;
#endif

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(WARPS <= 16, "sixteen warps of 128 registers are an SM; lower SETS");
static_assert(TILES == 1 || TILES % 2 == 0, "a product takes two tiles of eight rows");

// The sums of every part, until they are added.
using Partial = float[PASSES][SETS][PARTS][SET_ROWS][ROWS];

__device__ __forceinline__ uint4* shared_room() {
    extern __shared__ __align__(16) uint4 gemv_room[];
    return gemv_room;
}

// A lane's weights of a group. In a slot of the ring a load waits GEMV_THREADS places past the one before.
template <class Weights>
struct Held {
    static constexpr int LOADS = sizeof(typename Weights::Raw) / 16;
    static constexpr int SLOT = 2 * TILES * LOADS * GEMV_THREADS;  // in units of 16 bytes

    typename Weights::Raw raw[2][TILES];  // of both chunks

    __device__ __forceinline__ void read(const uint4* slot) {
#pragma unroll
        for (int i = 0; i < 2 * TILES * LOADS; ++i)
            reinterpret_cast<uint4*>(raw)[i] = load16(slot + i * GEMV_THREADS);
    }
};

// Where a set's rows begin in each pass: block after block, down the rows.
struct InOrder {
    int first_row;
    __device__ __forceinline__ int row_of(int pass) const { return first_row + pass * BLOCK_ROWS; }
};

// The rows of x.
template <bool Grouped>
struct Inputs {
    const bf16* x;
    int K, group_rows;  // as in gemv below
    i64 stride;
    // What rows of w from `row` on take of this lane's row.
    __device__ __forceinline__ const bf16* columns_of(int row) const {
        const bf16* const own = x + min((int)threadIdx.x % 32 / 4, ROWS - 1) * stride;
        return Grouped ? own + (i64)(row / group_rows) * K : own;
    }
};

// Where this lane's elements begin in a part's groups.
__device__ __forceinline__ int first_column(int part) {
    return part * GROUP + (int)threadIdx.x % 4 * LANE_ELEMENTS;
}

// The groups that a warp asks for: those of its part, then those of the next pass.
template <class Weights, class Deal>
struct Walk {
    const Weights& weights;
    const Deal& deal;
    int K, part, groups, left;  // groups of the part in a pass; still to be asked for
    int pass, group;
    const typename Weights::Element* from[TILES];  // this lane's, in its rows

    __device__ __forceinline__ void start_pass(int number) {
        pass = number;
        group = 0;
        const int row = deal.row_of(pass), own = row + (int)threadIdx.x % 32 / 4;
        from[0] = weights.row_at(own, K) + first_column(part);
#pragma unroll
        for (int t = 1; t < TILES; ++t) from[t] = from[0] + weights.rows_down(own, 8 * t) * K;
    }
    __device__ __forceinline__ void fetch(uint4* slot) const {
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const int half = i / TILES, t = i % TILES;
            const bool there = !TAIL || first_column(part) + group * STEP + half * CHUNK < K;
            uint4* const place = slot + i * (Held<Weights>::LOADS * GEMV_THREADS);
            Weights::template copy<GEMV_THREADS>(place, from[t] + half * CHUNK, there);
        }
    }
    __device__ __forceinline__ void advance() {
        --left;
        ++group;
        if (PASSES > 1 && group == groups) return start_pass(pass + 1);
#pragma unroll
        for (int t = 0; t < TILES; ++t) from[t] += STEP;
    }
};

// The scales of a warp's groups, 32 at a time, a lane each. They are cold: a warp that asked for each when
// it comes to its group would wait for memory once a group, whatever waits in the ring.
template <class Weights, class Deal>
struct Scales {
    const Weights& weights;
    const Deal& deal;
    int part, groups, steps;  // groups of the part in a pass; of all passes
    float held;

    // From that step on.
    __device__ __forceinline__ void load(int first) {
        if constexpr (Weights::SCALED) {
            const int step = first + (int)threadIdx.x % 32;
            if (step >= steps) return;
            const int pass = step / groups;
            held = weights.scale_of(deal.row_of(pass), part + (step - pass * groups) * PARTS);
        }
    }
    __device__ __forceinline__ float of(int step) {
        if constexpr (!Weights::SCALED) {
            return 1.0f;
        } else {
            if (step > 0 && step % 32 == 0) load(step);
            return __shfl_sync(FULL_WARP, held, step % 32);
        }
    }
};

// What a group of weights is multiplied by: this lane's elements of x, in both chunks.
struct Factors {
    uint4 x[2][2];
};

// The groups in the order of Walk, for what they are multiplied by.
template <bool Grouped, class Deal>
struct FactorWalk {
    const Deal& deal;
    const Inputs<Grouped>& in;
    int part, groups, left;
    int pass, group;
    const bf16* from;

    __device__ __forceinline__ void start_pass(int number) {
        pass = number;
        group = 0;
        from = in.columns_of(deal.row_of(pass)) + first_column(part);
    }
    // Of the next group; behind the last one nothing.
    __device__ __forceinline__ void load(Factors& factors) {
        if (left <= 0) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const bool there = !TAIL || first_column(part) + group * STEP + half * CHUNK < in.K;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                factors.x[half][i] = there ? load16(from + half * CHUNK + 8 * i)
                                           : make_uint4(0, 0, 0, 0);
        }
        --left;
        ++group;
        if (PASSES > 1 && group == groups) return start_pass(pass + 1);
        from += STEP;
    }
};

// Two tiles' share of a chunk, on to their sums.
template <class Weights>
__device__ __forceinline__ void multiply(const typename Weights::Raw (&raw)[TILES], int pair,
                                         const uint4 (&x)[2], float (&sum)[4]) {
#pragma unroll
    for (int j = 0; j < PRODUCTS; ++j) {
        u32 a[4] = {};
        Weights::decode(raw[2 * pair], j, a[0], a[2]);
        if constexpr (TILES > 1) Weights::decode(raw[2 * pair + 1], j, a[1], a[3]);
        const uint4 four = x[j / 2];
        const u32 b[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
        mma_bf16_16816(sum, a, b);
    }
}

// A pass is done: products hold rows tile_row and tile_row + 8 of two tiles, for two rows of x.
__device__ __forceinline__ void keep_sums(const float (&total)[PAIRS][4],
                                          float (&partial)[SET_ROWS][ROWS]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * pair + 8 * (i / 2) + lane / 4, m = 2 * (lane % 4) + i % 2;
            if (m < ROWS && row < SET_ROWS) partial[row][m] = total[pair][i];
        }
}

// The sums of `passes` passes of this thread's set, in parts. Weights: row_at(row, K) is where a row's
// elements start, rows_down(row, n) how many of n rows below are there; Raw holds 16 of them;
// copy(place, elements, whether they are there) and decode(raw, j, low pair, high pair) read them. If
// they are SCALED a group's sum is multiplied by scale_of(row, group).
template <bool Grouped, class Weights, class Deal>
__device__ __forceinline__ Partial& sum_passes(const Weights& weights, const Deal& deal,
                                               const Inputs<Grouped>& in, int passes) {
    constexpr int SLOT = Held<Weights>::SLOT;
    uint4* const ring = shared_room() + threadIdx.x;
    const int part = threadIdx.x / 32 % PARTS, set = threadIdx.x / 32 / PARTS;
    const int groups = ((in.K + GROUP - 1) / GROUP - part + PARTS - 1) / PARTS;
    Walk<Weights, Deal> walk{weights, deal, in.K, part, groups, passes * groups};
    walk.start_pass(0);
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (walk.left > 0) walk.fetch(ring + d * SLOT);
        walk.advance();
        cp_async_commit();
    }
    Scales<Weights, Deal> scales{weights, deal, part, groups, passes * groups, 1.0f};
    scales.load(0);
    FactorWalk<Grouped, Deal> factors{deal, in, part, groups, passes * groups};
    factors.start_pass(0);
    Factors next = {};
    // Kernels do not promise that x is read-only for good: such a load could go ahead of the wait.
    wait_for_previous();
    if (FACTORS_AHEAD) factors.load(next);

    Partial& partial = *reinterpret_cast<Partial*>(shared_room() + DEPTH * SLOT);
    int at = 0, step = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        float total[PAIRS][4] = {};
#pragma unroll 1
        for (int group = 0; group < groups; ++group) {
            if (!FACTORS_AHEAD) factors.load(next);
            const Factors now = next;
            uint4* const slot = ring + at * SLOT;
            at = at + 1 == DEPTH ? 0 : at + 1;
            Held<Weights> held;
            cp_async_wait<DEPTH - 1>();
            // In front of the weights, which would have them wait.
            if (FACTORS_AHEAD) factors.load(next);
            held.read(slot);
            if (walk.left > 0) walk.fetch(slot);
            walk.advance();
            cp_async_commit();

            float sum[PAIRS][4] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair)
                    multiply<Weights>(held.raw[half], pair, now.x[half], sum[pair]);
            const float scale = scales.of(step++);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    total[pair][i] = fmaf(sum[pair][i], scale, total[pair][i]);
        }
        keep_sums(total, partial[pass][set][part]);
    }
    return partial;
}

// The parts together, for row `at` of all passes of the block and row m of x.
__device__ __forceinline__ float sum_of_row(const Partial& partial, int at, int m) {
    const auto& parts = partial[at / BLOCK_ROWS][at % BLOCK_ROWS / SET_ROWS];
    float value = parts[0][at % SET_ROWS][m];
#pragma unroll
    for (int p = 1; p < PARTS; ++p) value += parts[p][at % SET_ROWS][m];
    return value;
}

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(bf16* to, float value) { *to = f32_to_bf16(value); }

// Grouped: every `group_rows` rows of w take the next K columns of x; else all take the same. y in f32,
// or rounded once more to bf16.
template <bool Grouped, class Weights, class Output>
__device__ __forceinline__ void gemv(const Weights& weights, const bf16* x, Output* y, int N, int K,
                                     int group_rows, i64 x_stride, i64 y_stride) {
    let_next_start();
    const int block_row = blockIdx.x * (PASSES * BLOCK_ROWS);
    const int first_row = block_row + (int)threadIdx.x / 32 / PARTS * SET_ROWS;
    const int passes = max(0, min(PASSES, (N - first_row + BLOCK_ROWS - 1) / BLOCK_ROWS));
    const Partial& partial = sum_passes<Grouped>(weights, InOrder{first_row},
                                                 {x, K, group_rows, x_stride}, passes);
    __syncthreads();
    for (int i = threadIdx.x; i < PASSES * BLOCK_ROWS * ROWS; i += GEMV_THREADS) {
        const int m = i / (PASSES * BLOCK_ROWS), at = i % (PASSES * BLOCK_ROWS);
        if (block_row + at < N)
            store(y + m * y_stride + block_row + at, sum_of_row(partial, at, m));
    }
}

// A few rows of x past a weight matrix on tensor cores, shared by linear_bf16 and linear_fp8, so that
// equal weights give equal bytes whatever they are stored in.
//
//   y[m, n] = sum over k of w[n, k] * x[m, k]      w [N, K], x bf16 [ROWS, K], y f32 [ROWS, N]
//
// The weights are the tall operand of m16n8k16, the rows of x its eight columns. A column is computed
// from its own row of x alone, and rows that are not there are columns of zeros: so a row gives the
// same bytes whatever runs beside it.
//
// Order of the sum. K is cut into groups of 128, in which FP8 weights share a scale, and a group into
// two chunks of 64. In a chunk lane quarter q (lane % 4) has elements 16 q .. 16 q + 15, in one load
// of codes or two of bf16; product j of four takes the elements 16 q + 4 j .. + 3 of every quarter.
// The eight products of a group are chained in the tensor core from 0. Then group j belongs to part
// j % PARTS: its sum, times the weights' factor, is fused onto the part's, groups ascending; and the
// parts are added in ascending order. PARTS depends on K alone: the order does not change with N,
// with the rows of x, or with how rows of w are dealt out.
//
// A warp has one part of one set of 8 * TILES rows of w and walks its chunks, pass after pass down the
// rows. Weights wait in shared memory, DEPTH chunks of them, in places that only the thread reads which
// had them copied: registers hold sums and what is being multiplied, so that a block of the kernel
// behind fits beside this one, and there is no barrier before the parts are added. The first DEPTH
// chunks are on their way before the kernel before has ended. x is for a warp alone, too: what its part
// takes lies in shared memory as a whole, or rides with the weights where that is too much. Rows past N
// repeat the last one and are not stored; past K all is 0.
//
// Build constants: ROWS (1..8), PARTS, SETS (of rows in a block), TILES (1, 2 or 4), PASSES, DEPTH,
// X_CHUNKS (of a part, if x waits as a whole; else 0), LATE (1 if the parts' sums take the room of the
// weights, when they are used up); TAIL, 1 if K is no multiple of 128.
#pragma once

#include "common/gemv_room.cuh"
#include "common/overlap.cuh"

// Where a set's rows begin in each pass: block after block, down the rows.
struct InOrder {
    int first_row;
    __device__ __forceinline__ int row_of(int pass) const { return first_row + pass * BLOCK_ROWS; }
};

// The rows of x, where a part begins in them.
template <bool Grouped>
struct Inputs {
    const bf16* x;
    int K, group_rows;  // as in gemv below
    i64 stride;
    // What rows of w from `row` on take of the first row.
    __device__ __forceinline__ const bf16* columns_of(int row) const {
        return Grouped ? x + (i64)(row / group_rows) * K : x;
    }
};

// What a part takes of x, from the columns at `x` on, to where lanes read it.
template <bool Grouped, class Weights>
__device__ __forceinline__ void stage_x(const Inputs<Grouped>& in, const Room<Weights>& room,
                                        const bf16* x, int part) {
    constexpr int PIECES = X_CHUNKS * 2 * X_LANES, BATCH = 4;
#pragma unroll 1
    for (int first = threadIdx.x % 32; first < PIECES; first += 32 * BATCH) {
        uint4 held[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // In the order of memory: halves, quarters, rows, chunks.
            const int i = first + 32 * b, m = i / 8 % ROWS, chunk = i / (8 * ROWS);
            const int k = part * GROUP + chunk / 2 * (GROUP * PARTS) + chunk % 2 * CHUNK +
                          i % 8 * 8;
            held[b] = make_uint4(0, 0, 0, 0);
            if (i < PIECES && k < in.K) held[b] = load16(x + m * in.stride + k);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int i = first + 32 * b, m = i / 8 % ROWS, chunk = i / (8 * ROWS);
            if (i < PIECES) store16(room.x_place(chunk, i % 2, 4 * m + i / 2 % 4), held[b]);
        }
    }
    __syncwarp();
}

// The chunks that a warp has copied: the two of a group, the groups of its part, then the next pass.
template <bool Grouped, class Weights, class Deal>
struct Walk {
    const Weights& weights;
    const Deal& deal;
    const Inputs<Grouped>& in;
    const Room<Weights>& room;
    int part, groups, left;  // groups of the part in a pass; still to be copied
    int pass, k;             // k: this lane's first element in the group's first chunk
    const bf16* x;           // the columns that the pass takes
    const typename Weights::Element* from;  // this lane's, there
    int apart[TILES];                       // from there to its rows of the tiles

    __device__ __forceinline__ void start_pass(int number) {
        pass = number;
        const int row = deal.row_of(pass);
        x = in.columns_of(row);
        k = part * GROUP + (int)threadIdx.x % 4 * LANE_ELEMENTS;
        const int first = row + (int)threadIdx.x % 32 / 4;
        from = weights.row_at(first, in.K) + k;
#pragma unroll
        for (int t = 0; t < TILES; ++t) apart[t] = weights.rows_down(first, 8 * t) * in.K;
    }
    __device__ __forceinline__ void fetch_weights(int slot, bool second) const {
        const bool there = !TAIL || k + (second ? CHUNK : 0) < in.K;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
            Weights::template copy<GEMV_THREADS>(room.place(slot, t),
                                                 from + apart[t] + (second ? CHUNK : 0), there);
    }
    __device__ __forceinline__ void fetch_x(int slot, bool second) const {
        const int lane = threadIdx.x % 32, at = k + (second ? CHUNK : 0);
        if (X_CHUNKS || lane >= X_LANES) return;
        const bf16* const own = x + lane / 4 * in.stride + at;
        const bool there = !TAIL || at < in.K;
        cp_async16_or_zero(room.x_place(slot, 0, lane), own, there);
        cp_async16_or_zero(room.x_place(slot, 1, lane), own + 8, there);
    }
    __device__ __forceinline__ void advance(bool second) {
        if (!second) return;
        --left;
        k += GROUP * PARTS;
        from += GROUP * PARTS;
        if (PASSES > 1 && k >= part * GROUP + groups * (GROUP * PARTS) && left > 0)
            start_pass(pass + 1);
    }
};

// Scales of 32 of a warp's groups, pass after pass, one a lane.
template <class Weights, class Deal>
__device__ __forceinline__ float scale_of_lane(const Weights& weights, const Deal& deal, int first,
                                               int part, int groups, int count) {
    const int step = first + (int)threadIdx.x % 32;
    if (!Weights::SCALED || step >= count) return 1.0f;
    const int pass = PASSES > 1 ? step / groups : 0;
    return weights.scale_at(deal.row_of(pass), part + (step - pass * groups) * PARTS);
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
// elements start, rows_down(row, n) how many of n rows below are there; Raw holds 16 of them; copy(place, elements, whether they are there) and
// decode(raw, j, low pair, high pair) read them. If they are SCALED a group's sum is multiplied by
// scale_at(row, group).
template <bool Grouped, class Weights, class Deal>
__device__ __forceinline__ void sum_passes(const Weights& weights, const Deal& deal,
                                           const Inputs<Grouped>& in, int passes,
                                           Partial& partial) {
    const int part = threadIdx.x / 32 % PARTS, set = threadIdx.x / 32 / PARTS;
    const int groups = ((in.K + GROUP - 1) / GROUP - part + PARTS - 1) / PARTS;
    const int count = passes * groups;
    const Room<Weights> room = Room<Weights>::of_thread(shared_room());
    Walk<Grouped, Weights, Deal> walk{weights, deal, in, room, part, groups, count};
    walk.start_pass(0);
    Walk<Grouped, Weights, Deal> walk_x = walk;
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (walk.left > 0) {
            walk.fetch_weights(d, d % 2);
            walk.advance(d % 2);
        }
        cp_async_commit();
    }
    float scales = scale_of_lane(weights, deal, 0, part, groups, count);
    // Kernels do not promise that x is read-only for good: such a load could go ahead of the wait.
    wait_for_previous();
    if (X_CHUNKS) {
        if (passes > 0) stage_x(in, room, walk_x.x, part);
    } else {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (walk_x.left <= 0) break;
            walk_x.fetch_x(d, d % 2);
            walk_x.advance(d % 2);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }

    int slot = 0, step = 0;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
        if (!LATE && pass >= passes) break;
        float total[PAIRS][4] = {};
#pragma unroll 1
        for (int group = 0; group < groups; ++group, ++step) {
            if (LATE && passes == 0) break;
            float sum[PAIRS][4] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                cp_async_wait<DEPTH - 1>();
                const int x_slot = X_CHUNKS ? 2 * group + half : slot;
                const uint4 x[2] = {room.x_at(x_slot, 0), room.x_at(x_slot, 1)};
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair) multiply(room, slot, pair, x, sum[pair]);
                if (walk.left > 0) {  // its place is free now
                    walk.fetch_weights(slot, (half + DEPTH) % 2);
                    walk.fetch_x(slot, (half + DEPTH) % 2);
                    walk.advance((half + DEPTH) % 2);
                }
                cp_async_commit();
                slot = slot + 1 == DEPTH ? 0 : slot + 1;
            }
            if (Weights::SCALED && step > 0 && step % 32 == 0)
                scales = scale_of_lane(weights, deal, step, part, groups, count);
            const float scale = Weights::SCALED ? __shfl_sync(~0u, scales, step % 32) : 1.0f;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    total[pair][i] = fmaf(sum[pair][i], scale, total[pair][i]);
        }
        if (LATE) __syncthreads();
        if (!LATE || passes > 0) keep_sums(total, partial[pass][set][part]);
    }
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
    __shared__ float own_room[LATE ? 1 : sizeof(Partial) / 4];
    Partial& partial = *reinterpret_cast<Partial*>(LATE ? (float*)shared_room() : own_room);
    // A block that only fills the wave stays as long as the others: it does what the last one does.
    const int last = (N - 1) / (PASSES * BLOCK_ROWS);
    const int block_row = min((int)blockIdx.x, last) * (PASSES * BLOCK_ROWS);
    const int first_row = block_row + (int)threadIdx.x / 32 / PARTS * SET_ROWS;
    const int passes = max(0, min(PASSES, (N - first_row + BLOCK_ROWS - 1) / BLOCK_ROWS));
    sum_passes<Grouped>(weights, InOrder{first_row}, {x, K, group_rows, x_stride}, passes, partial);
    __syncthreads();
    if ((int)blockIdx.x > last) return;
    for (int i = threadIdx.x; i < PASSES * BLOCK_ROWS * ROWS; i += GEMV_THREADS) {
        const int m = i / (PASSES * BLOCK_ROWS), at = i % (PASSES * BLOCK_ROWS);
        if (block_row + at < N)
            store(y + m * y_stride + block_row + at, sum_of_row(partial, at, m));
    }
}

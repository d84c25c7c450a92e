// project: every product of a layer's normed input, for 1 to 8 rows of it, in one launch
//
//   latent[t, q] = sum over d of wq_a[q, d] * bf16(x[t, d])     codes e4m3 [Q, D], scales of 128 x 128
//   kv[t, k]     = sum over d of wkv[k, d] * bf16(x[t, d])      codes e4m3 [K, D], scales of 128 x 128
//   heads[t, h]  = sum over d of proj[h, d] * bf16(x[t, d])     bf16 [H, D]
//   raw_kv[row], raw_score[row] = x[t] times every row of the compressor's wkv and wgate, bf16 [c K, D],
//                               unrounded, in row raw_rows[t] of their rings; the indexer's likewise
//
//   project_window    latent and kv: a layer without blocks
//   project_blocks    and the compressor, c = 1
//   project_indexed   and the compressor, c = 2, the indexer's of [L, D], and heads
//
// The bytes are those of cast_bf16, linear_fp8, linear_bf16, island_dots_bf16_f32 and movement_scatter:
// dense sums in the order of common/gemv.cuh with its PARTS, islands in that of common/parts.cuh with
// the PART_STEPS of island_dots. A row of weights is summed alone, so it does not show which block has
// it, and beside what.
//
// A block has an even share of the rows of every matrix, so all end together. What a warp reads is a
// sequence of beats through all of them: WARP_ROWS loads of 16 bytes a lane, which land in its ring
// in shared memory. RING beats are on their way before the first value of x is touched, and as many
// after that. A lane reads back its own loads only, so the walk has no barriers. x lies in shared
// memory, if it fits, in the order in which lanes read it.
//
// Loops are not unrolled where it would only lengthen the code: a step runs through it once a layer, and
// what has fallen out of the caches since is read anew.
//
// Rows and elements past the end are zeros, which change no sum. An id outside the ring writes nothing.
//
// Build constants: KIND (0, 1 or 2: which of the three is built), ROWS (1..8), WIDTH (D), DENSE_PARTS, MAIN_STEPS, MAIN_PARTS, INDEX_STEPS, INDEX_PARTS,
// the most rows of a block of every kind (DENSE_ROWS, HEAD_ROWS, MAIN_ROWS, INDEX_ROWS), RING, STAGED, WARP_ROWS (2 or 4: of an island, in a beat).
#define BATCH 1
#include "common/dots.cuh"
#include "common/mma.cuh"
#include "common/overlap.cuh"

enum { WINDOW, BLOCKS, INDEXED };

constexpr int WARPS = 16;
constexpr int THREADS = 32 * WARPS;
constexpr int SLOTS = WARP_ROWS;
// On an SM: one or two rows of x need half of its registers, and the next kernel finds the other half.
constexpr int MIN_BLOCKS = ROWS <= 2 ? 2 : 1;
constexpr int STEPS = (WIDTH + STEP - 1) / STEP;
constexpr int GROUP = 128;  // elements of a dense row that share a scale
constexpr int CHUNK = 64;   // elements that a lane quarter's 16 lie in
constexpr int GROUPS = (WIDTH + GROUP - 1) / GROUP;
constexpr int TILE = 8;  // rows of a dense matrix that a warp multiplies together
constexpr int STRIDE = 4 * (STEPS * STEP / 4 + 1);  // of staged rows of x: odd in 16-byte units

// Where things lie in shared memory, in floats.
constexpr int X_AT = WARPS * RING * SLOTS * 32 * 4;
constexpr int SCALES_AT = X_AT + (STAGED ? ROWS * STRIDE : 0);
constexpr int DENSE_AT = SCALES_AT + DENSE_ROWS * GROUPS;
constexpr int HEADS_AT = DENSE_AT + DENSE_ROWS * ROWS * DENSE_PARTS;
constexpr int MAIN_AT = HEADS_AT + HEAD_ROWS * ROWS * DENSE_PARTS;
constexpr int INDEX_AT = MAIN_AT + MAIN_ROWS * ROWS * MAIN_PARTS;

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(SLOTS == 2 || SLOTS == 4,
              "a beat is whole groups of FP8, and they whole beats of bf16");
static_assert(WIDTH % 16 == 0, "a lane takes 16 consecutive elements of a row");
static_assert(MAIN_PARTS <= 32 && INDEX_PARTS <= 32, "one thread folds the parts of a sum");

// ------------------------------------------------------------------ x

// Rows of x. Staged, the 64 units of 4 elements of a step lie evens first: what a warp reads at once
// is then neighbours, and rows of x are an odd number of units apart.
struct Inputs {
    const float* at;

    static __device__ __forceinline__ int place(int m, int k) {
        const u32 unit = (u32)k / 4;
        return m * STRIDE + 4 * (int)((unit & ~63u) + ((unit & 1u) << 5) + ((unit & 63u) >> 1));
    }
    __device__ __forceinline__ void load(int m, int k, float (&v)[PIECE]) const {
        Floats<PIECE> four = {};
        if (STAGED)
            four = load_floats<PIECE>(at + place(m, k));
        else if (k < WIDTH)
            four = load_floats<PIECE>(at + (i64)m * WIDTH + k);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) v[i] = four.at[i];
    }
};

__device__ __forceinline__ Inputs stage(const float* x, float* shared) {
    if (!STAGED) return {x};
    constexpr int UNITS = STEPS * STEP / 4;
#pragma unroll 8
    for (int i = threadIdx.x; i < ROWS * UNITS; i += THREADS) {
        const int m = i / UNITS, k = i % UNITS * 4;
        const uint4 four = k < WIDTH ? load16(x + (i64)m * WIDTH + k) : make_uint4(0, 0, 0, 0);
        store16(shared + Inputs::place(m, k), four);
    }
    __syncthreads();
    return {shared};
}

// ------------------------------------------------------------------ who does what

// This block's rows of a matrix.
struct Share {
    int first, count;
};
__device__ __forceinline__ Share share_of(int rows) {
    // Fewer than 2^24 rows: a division of 64 bits would take longer than the first loads.
    const u32 first = (u32)rows * blockIdx.x / gridDim.x;
    return {(int)first, (int)((u32)rows * (blockIdx.x + 1) / gridDim.x - first)};
}

// Tasks are dealt to warps in turn: task i of this warp.
__device__ __forceinline__ int task_of_warp(int i) { return threadIdx.x / 32 + i * WARPS; }
__device__ __forceinline__ int tasks_of_warp(int tasks) {
    return max(0, (tasks - (int)threadIdx.x / 32 + WARPS - 1) / WARPS);
}

// Two matrices of `rows` rows, one under the other, times unrounded x. A task is a part of WARP_ROWS
// rows, and a beat one of its steps.
template <int Steps, int Parts>
struct Island {
    const bf16 *upper, *lower;
    int rows;
    Share share;

    static constexpr int BEATS = Steps;
    __device__ __forceinline__ int tasks() const {
        return tasks_of_warp((share.count + WARP_ROWS - 1) / WARP_ROWS * Parts);
    }
    static __device__ __forceinline__ int element(int task, int beat) {
        return (task % Parts * Steps + beat) * STEP + (int)threadIdx.x % 32 * LANE_ELEMENTS;
    }
    __device__ __forceinline__ void fetch(uint4* to, int task, int beat) const {
        const int k = element(task, beat), first = task / Parts * WARP_ROWS;
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) {
            const int row = share.first + first + r;
            const bool there = first + r < share.count && k < WIDTH;
            const bf16* from = row < rows ? upper + (i64)row * WIDTH
                                          : lower + (i64)(row - rows) * WIDTH;
            cp_async16_or_zero(to + 32 * r, there ? from + k : upper, there);
        }
    }
};

// The FP8 matrices, one under the other. A task is a part of TILE rows, and a beat OF_BEAT of
// its groups.
struct Dense {
    const u8 *upper, *lower;
    int rows;  // of the upper one
    Share share;

    static constexpr int OF_BEAT = SLOTS / 2;
    static constexpr int BEATS = ((GROUPS + DENSE_PARTS - 1) / DENSE_PARTS + OF_BEAT - 1) / OF_BEAT;
    __device__ __forceinline__ int tasks() const {
        return tasks_of_warp((share.count + TILE - 1) / TILE * DENSE_PARTS);
    }
    __device__ __forceinline__ void fetch(uint4* to, int task, int beat) const {
        const int lane = threadIdx.x % 32, at = task / DENSE_PARTS * TILE + lane / 4;
        const int row = share.first + at;
        const u8* from = row < rows ? upper + (i64)row * WIDTH : lower + (i64)(row - rows) * WIDTH;
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const int group = task % DENSE_PARTS + (OF_BEAT * beat + slot / 2) * DENSE_PARTS;
            const int k = group * GROUP + slot % 2 * CHUNK + lane % 4 * 16;
            const bool there = at < share.count && k < WIDTH;
            cp_async16_or_zero(to + 32 * slot, there ? from + k : upper, there);
        }
    }
};

// The bf16 matrix; a group of a part is OF_GROUP beats.
struct Heads {
    const bf16* elements;
    Share share;

    static constexpr int OF_GROUP = 4 / SLOTS;
    static constexpr int BEATS = (GROUPS + DENSE_PARTS - 1) / DENSE_PARTS * OF_GROUP;
    static __device__ __forceinline__ int group_of(int task, int beat) {
        return task % DENSE_PARTS + beat / OF_GROUP * DENSE_PARTS;
    }
    // This lane's element of a load.
    static __device__ __forceinline__ int element(int group, int beat, int slot) {
        const int piece = beat % OF_GROUP * SLOTS + slot;
        return group * GROUP + piece / 2 * CHUNK + (int)threadIdx.x % 4 * 16 + piece % 2 * 8;
    }
    __device__ __forceinline__ int tasks() const {
        return tasks_of_warp((share.count + TILE - 1) / TILE * DENSE_PARTS);
    }
    __device__ __forceinline__ void fetch(uint4* to, int task, int beat) const {
        const int lane = threadIdx.x % 32, at = task / DENSE_PARTS * TILE + lane / 4;
        const int group = group_of(task, beat);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const int k = element(group, beat, slot);
            const bool there = at < share.count && k < WIDTH;
            cp_async16_or_zero(to + 32 * slot,
                               there ? elements + (i64)(share.first + at) * WIDTH + k : elements,
                               there);
        }
    }
};

using Main = Island<MAIN_STEPS, MAIN_PARTS>;
using Index = Island<INDEX_STEPS, INDEX_PARTS>;

// What this block reads, and how far this warp is.
struct Beats {
    Main main;
    Index index;
    Dense dense;
    Heads heads;
    uint4* ring;  // this lane's element of the first slot
    int fetched, taken;

    // A task's beat, counted from the segment's first one.
    template <class Segment>
    __device__ __forceinline__ bool fetch_of(const Segment& segment, int& beat, uint4* to) const {
        const int beats = segment.tasks() * Segment::BEATS;
        if (beat >= beats) {
            beat -= beats;
            return false;
        }
        segment.fetch(to, task_of_warp(beat / Segment::BEATS), beat % Segment::BEATS);
        return true;
    }
    // Past the last beat an empty group of copies, so that counting goes on.
    __device__ __forceinline__ void fetch() {
        uint4* to = ring + fetched % RING * (SLOTS * 32);
        int beat = fetched++;
        bool done = false;
        if constexpr (KIND >= BLOCKS) done = fetch_of(main, beat, to);
        if constexpr (KIND == INDEXED) done = done || fetch_of(index, beat, to);
        done = done || fetch_of(dense, beat, to);
        if constexpr (KIND == INDEXED) done = done || fetch_of(heads, beat, to);
        cp_async_commit();
    }
    // The next beat's loads. The next fetch goes to where they lay, so they are used before it.
    __device__ __forceinline__ void take(uint4 (&loads)[SLOTS]) {
        cp_async_wait<RING - 1>();
        const uint4* from = ring + taken++ % RING * (SLOTS * 32);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) loads[slot] = load16(from + 32 * slot);
    }
};

// ------------------------------------------------------------------ sums

// partial: [row of the share][row of x][part].
template <int Steps, int Parts, class Walk>
__device__ __forceinline__ void sum_island(const Island<Steps, Parts>& island, Walk& beats,
                                           const Inputs& x, float* partial) {
    const int tasks = island.tasks();
#pragma unroll 1
    for (int i = 0; i < tasks; ++i) {
        const int task = task_of_warp(i);
        float sum[WARP_ROWS][ROWS] = {};
#pragma unroll 1
        for (int beat = 0; beat < Steps; ++beat) {
            uint4 loads[SLOTS];
            beats.take(loads);
            // The last part may have fewer steps; there is no x for more.
            if (task % Parts * Steps + beat < STEPS)
                add_step<Bf16Weights>(loads, x, island.element(task, beat), sum);
            beats.fetch();
        }
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                const float total = warp_sum(sum[r][m]);
                const int row = task / Parts * WARP_ROWS + r;
                if (threadIdx.x % 32 == 0 && row < island.share.count)
                    partial[(row * ROWS + m) * Parts + task % Parts] = total;
            }
    }
}

// Eight rows of weights times one product's 16 elements, which every lane quarter has four of: those
// from k on. A lane without a row of x has zeros.
__device__ __forceinline__ void multiply(u32 low, u32 high, const Inputs& x, int k,
                                         float (&sum)[4]) {
    const int m = threadIdx.x % 32 / 4;
    float v[PIECE] = {};
    if (m < ROWS) x.load(m, k, v);
    const u32 a[4] = {low, 0, high, 0};
    const u32 b[2] = {f32x2_to_bf16x2(v[0], v[1]), f32x2_to_bf16x2(v[2], v[3])};
    mma_bf16_16816(sum, a, b);
}

__device__ __forceinline__ void keep_part(const float (&total)[2], int task, int count,
                                          float* partial) {
    const int lane = threadIdx.x % 32, row = task / DENSE_PARTS * TILE + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int m = 2 * (lane % 4) + i;
        if (m < ROWS && row < count)
            partial[(row * ROWS + m) * DENSE_PARTS + task % DENSE_PARTS] = total[i];
    }
}

// scales: [row of the share][group].
template <class Walk>
__device__ __forceinline__ void sum_dense(const Dense& dense, Walk& beats, const Inputs& x,
                                          const float* scales, float* partial) {
    const int lane = threadIdx.x % 32, tasks = dense.tasks();
#pragma unroll 1
    for (int i = 0; i < tasks; ++i) {
        const int task = task_of_warp(i);
        // A row that is not there has the scales of one that is.
        const int row = min(task / DENSE_PARTS * TILE + lane / 4, dense.share.count - 1);
        float total[2] = {};
#pragma unroll 1
        for (int beat = 0; beat < Dense::BEATS; ++beat) {
            uint4 loads[SLOTS];
            beats.take(loads);
#pragma unroll
            for (int half = 0; half < Dense::OF_BEAT; ++half) {
                const int group = task % DENSE_PARTS + (Dense::OF_BEAT * beat + half) * DENSE_PARTS;
                if (group >= GROUPS) break;
                float sum[4] = {};
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const uint4 raw = loads[2 * half + c];
                    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
                    const int k = group * GROUP + c * CHUNK + lane % 4 * 16;
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        multiply(e4m3x2_to_bf16x2<0>(words[j]), e4m3x2_to_bf16x2<2>(words[j]), x,
                                 k + 4 * j, sum);
                }
                const float scale = scales[row * GROUPS + group];
                total[0] = fmaf(sum[0], scale, total[0]);
                total[1] = fmaf(sum[1], scale, total[1]);
            }
            beats.fetch();
        }
        keep_part(total, task, dense.share.count, partial);
    }
}

template <class Walk>
__device__ __forceinline__ void sum_heads(const Heads& heads, Walk& beats, const Inputs& x,
                                          float* partial) {
    const int tasks = heads.tasks();
#pragma unroll 1
    for (int i = 0; i < tasks; ++i) {
        const int task = task_of_warp(i);
        float total[2] = {}, sum[4] = {};
#pragma unroll 1
        for (int beat = 0; beat < Heads::BEATS; ++beat) {
            uint4 loads[SLOTS];
            beats.take(loads);
            const int group = Heads::group_of(task, beat);
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                if (group >= GROUPS) break;
                const uint4 raw = loads[slot];
                const int k = Heads::element(group, beat, slot);
                multiply(raw.x, raw.y, x, k, sum);
                multiply(raw.z, raw.w, x, k + 4, sum);
            }
            beats.fetch();
            if ((beat + 1) % Heads::OF_GROUP) continue;
            total[0] += sum[0];
            total[1] += sum[1];
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
        }
        keep_part(total, task, heads.share.count, partial);
    }
}

// ------------------------------------------------------------------ what leaves the block

// The sum of dense parts in ascending order.
__device__ __forceinline__ float in_order(const float* parts) {
    float value = parts[0];
#pragma unroll
    for (int p = 1; p < DENSE_PARTS; ++p) value += parts[p];
    return value;
}

// Rows of a ring, which are as long as the matrix is high.
template <int Parts, int Steps>
__device__ __forceinline__ void write_rings(const Island<Steps, Parts>& island,
                                            const float* partial, const i32* raw_rows, int ring,
                                            float* kv, float* score) {
    const int count = island.share.count;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * ROWS; i += THREADS) {
        const int row = island.share.first + i / ROWS, id = raw_rows[i % ROWS];
        const float value = to_f32(folded_parts<Parts>(partial + i * Parts));
        if (id < 0 || id >= ring) continue;
        if (row < island.rows)
            kv[(i64)id * island.rows + row] = value;
        else
            score[(i64)id * island.rows + row - island.rows] = value;
    }
}

// Rings of a compressor, and its weights.
struct Compressor {
    const bf16 *wkv, *wgate;
    float *kv, *score;
    int channels;
};

__device__ __forceinline__ void project(const float* x, const u8* q_codes, const float* q_scales,
                                        const u8* kv_codes, const float* kv_scales, float* latent,
                                        float* kv, int Q, int K, Compressor main, Compressor index,
                                        const i32* raw_rows, int S, const bf16* proj, float* heads,
                                        int H) {
    extern __shared__ __align__(16) float shared[];
    let_next_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Beats beats = {{main.wkv, main.wgate, main.channels, share_of(2 * main.channels)},
                   {index.wkv, index.wgate, index.channels, share_of(2 * index.channels)},
                   {q_codes, kv_codes, Q, share_of(Q + K)},
                   {proj, share_of(H)},
                   (uint4*)shared + warp * (RING * SLOTS * 32) + lane,
                   0,
                   0};
#pragma unroll 1
    for (int i = 0; i < RING; ++i) beats.fetch();
    const Share dense = beats.dense.share;
    float* const scales = shared + SCALES_AT;
    for (int i = threadIdx.x; i < dense.count * GROUPS; i += THREADS) {
        const int row = dense.first + i / GROUPS;
        const float* from = row < Q ? q_scales + row / 128 * GROUPS
                                    : kv_scales + (row - Q) / 128 * GROUPS;
        scales[i] = from[i % GROUPS];
    }

    wait_for_previous();
    const Inputs rows = stage(x, shared + X_AT);
    if (!STAGED) __syncthreads();  // the scales
    if constexpr (KIND >= BLOCKS) sum_island(beats.main, beats, rows, shared + MAIN_AT);
    if constexpr (KIND == INDEXED) sum_island(beats.index, beats, rows, shared + INDEX_AT);
    sum_dense(beats.dense, beats, rows, scales, shared + DENSE_AT);
    if constexpr (KIND == INDEXED) sum_heads(beats.heads, beats, rows, shared + HEADS_AT);
    __syncthreads();

#pragma unroll 1
    for (int i = threadIdx.x; i < dense.count * ROWS; i += THREADS) {
        const int row = dense.first + i / ROWS, m = i % ROWS;
        const float value = in_order(shared + DENSE_AT + i * DENSE_PARTS);
        if (row < Q)
            latent[(i64)m * Q + row] = value;
        else
            kv[(i64)m * K + row - Q] = value;
    }
    if constexpr (KIND >= BLOCKS)
        write_rings<MAIN_PARTS>(beats.main, shared + MAIN_AT, raw_rows, S, main.kv, main.score);
    if constexpr (KIND == INDEXED) {
        write_rings<INDEX_PARTS>(beats.index, shared + INDEX_AT, raw_rows, S, index.kv,
                                 index.score);
        const Share some = beats.heads.share;
#pragma unroll 1
        for (int i = threadIdx.x; i < some.count * ROWS; i += THREADS) {
            const int row = some.first + i / ROWS, m = i % ROWS;
            heads[(i64)m * H + row] = in_order(shared + HEADS_AT + i * DENSE_PARTS);
        }
    }
}

#if KIND == 0

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    project_window(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                   const float* kv_scales, float* latent, float* kv, int Q, int K) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K, {}, {}, nullptr, 0,
            nullptr, nullptr, 0);
}

#elif KIND == 1

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    project_blocks(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                   const float* kv_scales, const bf16* wkv, const bf16* wgate, const i32* raw_rows,
                   float* latent, float* kv, float* raw_kv, float* raw_score, int Q, int K, int S) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K,
            {wkv, wgate, raw_kv, raw_score, K}, {}, raw_rows, S, nullptr, nullptr, 0);
}

#elif KIND == 2

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    project_indexed(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                    const float* kv_scales, const bf16* wkv, const bf16* wgate,
                    const bf16* index_wkv, const bf16* index_wgate, const bf16* proj,
                    const i32* raw_rows, float* latent, float* kv, float* heads, float* raw_kv,
                    float* raw_score, float* index_kv, float* index_score, int Q, int K, int L,
                    int H, int S) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K,
            {wkv, wgate, raw_kv, raw_score, 2 * K},
            {index_wkv, index_wgate, index_kv, index_score, L}, raw_rows, S, proj, heads, H);
}

#endif

// Who has which rows of the products of project.cu, where things lie in shared memory, and x there.
//
// Build constants: those of project.cu.
#pragma once

#include "common/dots.cuh"

constexpr int WARPS = 16;
constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = (WIDTH + STEP - 1) / STEP;
constexpr int GROUP = 128;  // elements of a dense row that share a scale
constexpr int CHUNK = 64;   // elements that a lane quarter's 16 lie in
constexpr int GROUPS = (WIDTH + GROUP - 1) / GROUP;

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(WIDTH % 16 == 0, "a lane takes 16 consecutive elements of a row");
static_assert(MAIN_PARTS <= 32 && INDEX_PARTS <= 32, "one thread folds the parts of a sum");

// The remainder tells the compiler how many there are, and so which tasks there are anyway.
__device__ __forceinline__ int thread() { return threadIdx.x % THREADS; }
__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

// This block's rows of a matrix.
struct Share {
    int first, count;
};

// Rows dealt evenly. The first of those left over goes to the block after that with the last one left
// over by the deal before, so that no block has more than one such row more than another.
template <int Height, int First>
struct Deal {
    static constexpr int LEAST = Height / BLOCKS, LEFT = Height % BLOCKS;
    static constexpr int MOST = LEAST + (LEFT > 0), NEXT = (First + LEFT) % BLOCKS;

    static __device__ __forceinline__ int place() {
        const int place = (int)blockIdx.x - First;
        return First && place < 0 ? place + BLOCKS : place;
    }
    static __device__ __forceinline__ Share share() {
        return {place() * LEAST + min(place(), LEFT), LEAST + (place() < LEFT)};
    }
    // Of `rows` rows each, to hold the share.
    static __device__ __forceinline__ int tiles(int rows) {
        return place() < LEFT ? (MOST + rows - 1) / rows : (LEAST + rows - 1) / rows;
    }
};
using MainDeal = Deal<MAIN_HEIGHT, 0>;
using HeadDeal = Deal<HEAD_HEIGHT, MainDeal::NEXT>;
using IndexDeal = Deal<INDEX_HEIGHT, HeadDeal::NEXT>;
using DenseDeal = Deal<DENSE_HEIGHT, IndexDeal::NEXT>;

// Rows of x in shared memory: rounded to bf16, and as they are if they fit. Both rows are an odd number
// of 16-byte units apart, and zeros from the end to a whole step.
constexpr int ROUNDED_STRIDE = STEPS * STEP + 8;
constexpr int STRIDE = STEPS * STEP + 4;

// Where things lie, in floats.
constexpr int EXACT_AT = ROWS * ROUNDED_STRIDE / 2;
constexpr int DENSE_AT = EXACT_AT + (STAGED ? ROWS * STRIDE : 0);
constexpr int HEADS_AT = DENSE_AT + DenseDeal::MOST * ROWS * DENSE_PARTS;
constexpr int MAIN_AT = HEADS_AT + HeadDeal::MOST * ROWS * DENSE_PARTS;
constexpr int INDEX_AT = MAIN_AT + MainDeal::MOST * ROWS * MAIN_PARTS;
constexpr int PLACES_AT = INDEX_AT + IndexDeal::MOST * ROWS * INDEX_PARTS;

// x as it is. Staged, the 64 units of 4 elements of a step lie evens first: what a warp reads at once
// is then neighbours.
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

// Of four elements, in a row with its zeros. Every thread has the same ones of each row.
constexpr int UNITS = STEPS * STEP / PIECE, UNITS_OF_THREAD = (UNITS + THREADS - 1) / THREADS;

// Starts copies of x, each thread those units that it will round; the caller commits them.
__device__ __forceinline__ void fetch_inputs(const float* x, float* shared) {
#pragma unroll
    for (int n = 0; n < (STAGED ? UNITS_OF_THREAD : 0); ++n) {
        const int unit = thread() + n * THREADS, k = unit * PIECE;
        if (unit >= UNITS) break;
#pragma unroll
        for (int m = 0; m < ROWS; ++m)
            cp_async16_or_zero(shared + EXACT_AT + Inputs::place(m, k),
                               k < WIDTH ? x + (i64)m * WIDTH + k : x, k < WIDTH);
    }
}

// What the walk reads, once those copies have landed and after a barrier.
__device__ __forceinline__ Inputs round_inputs(const float* x, float* shared) {
    const Inputs exact = {STAGED ? shared + EXACT_AT : x};
#pragma unroll(STAGED ? UNITS_OF_THREAD : 1)
    for (int n = 0; n < UNITS_OF_THREAD; ++n) {
        const int unit = thread() + n * THREADS, k = unit * PIECE;
        if (unit >= UNITS) break;
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            float v[PIECE];
            exact.load(m, k, v);
            *reinterpret_cast<uint2*>((bf16*)shared + m * ROUNDED_STRIDE + k) = make_uint2(
                f32x2_to_bf16x2(v[0], v[1]), f32x2_to_bf16x2(v[2], v[3]));
        }
    }
    return exact;
}

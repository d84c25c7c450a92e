// Weights and x on their way to the products of common/gemv.cuh, in shared memory: who has which place.
//
// Build constants: those of common/gemv.cuh.
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"

constexpr int GROUP = 128;
constexpr int CHUNK = 64;
constexpr int LANE_ELEMENTS = 16;
constexpr int PRODUCTS = CHUNK / 16;
constexpr int WARPS = PARTS * SETS;
constexpr int GEMV_THREADS = 32 * WARPS;
constexpr int SET_ROWS = 8 * TILES;
constexpr int BLOCK_ROWS = SETS * SET_ROWS;  // of one pass
constexpr int PAIRS = (TILES + 1) / 2;       // of eight rows each: what one product takes
constexpr int X_LANES = 4 * ROWS;            // lanes that have elements of x
constexpr int X_SLOTS = X_CHUNKS ? X_CHUNKS : DEPTH;

// Blocks on an SM. On Hopper 64 registers a thread leave half of them to the blocks of other kernels; where
// four tiles need more, or an SM has no shared memory for as much again, a block has all.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int MIN_BLOCKS = WARPS > 8 ? 1 : 16 / WARPS;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr int MIN_BLOCKS = TILES < 4 ? 32 / WARPS : WARPS > 8 ? 1 : 16 / WARPS;
#else
constexpr int MIN_BLOCKS = 32 / WARPS;
#endif

static_assert(ROWS >= 1 && ROWS <= 8, "verify at most 8 rows at once; split the call");
static_assert(WARPS <= 16, "sixteen warps of 64 registers are half an SM; lower SETS");
static_assert(TILES == 1 || TILES % 2 == 0, "a product takes two tiles of eight rows");
static_assert(!LATE || PASSES == 1, "the weights of a later pass would need the room");

// The sums of every part, until they are added.
using Partial = float[PASSES][SETS][PARTS][SET_ROWS][ROWS];

// Shared memory that the launch gives: weights on their way, then x. The sums, if they come LATE.
template <class Weights>
struct Room {
    static constexpr int PIECES = sizeof(typename Weights::Raw) / 16;
    static constexpr int SLOT = TILES * PIECES * GEMV_THREADS;  // in units of 16 bytes
    static constexpr int X_SLOT = 2 * X_LANES;

    uint4 *own, *x;  // this thread's first place, this warp's

    static __device__ __forceinline__ Room of_thread(uint4* shared) {
        const int warp = threadIdx.x / 32;
        return {shared + threadIdx.x, shared + DEPTH * SLOT + warp * (X_SLOTS * X_SLOT)};
    }
    __device__ __forceinline__ uint4* place(int slot, int tile) const {
        return own + slot * SLOT + tile * (PIECES * GEMV_THREADS);
    }
    __device__ __forceinline__ typename Weights::Raw weights_at(int slot, int tile) const {
        typename Weights::Raw raw;
        const uint4* const from = place(slot, tile);
        uint4* const pieces = reinterpret_cast<uint4*>(&raw);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) pieces[i] = load16(from + i * GEMV_THREADS);
        return raw;
    }
    // Half of the 16 elements that a lane with a row of x takes of a chunk; a lane without has zeros.
    __device__ __forceinline__ uint4* x_place(int slot, int half, int lane) const {
        return x + (slot * 2 + half) * X_LANES + lane;
    }
    __device__ __forceinline__ uint4 x_at(int slot, int half) const {
        const int lane = threadIdx.x % 32;
        return lane < X_LANES ? load16(x_place(slot, half, lane)) : make_uint4(0, 0, 0, 0);
    }
};

__device__ __forceinline__ uint4* shared_room() {
    extern __shared__ __align__(16) uint4 gemv_room[];
    return gemv_room;
}

// Two tiles' share of a chunk, on to their sums.
template <class Weights>
__device__ __forceinline__ void multiply(const Room<Weights>& room, int slot, int pair,
                                         const uint4 (&x)[2], float (&sum)[4]) {
    const typename Weights::Raw upper = room.weights_at(slot, 2 * pair);
    typename Weights::Raw lower = {};
    if constexpr (TILES > 1) lower = room.weights_at(slot, 2 * pair + 1);
#pragma unroll
    for (int j = 0; j < PRODUCTS; ++j) {
        u32 a[4] = {};
        Weights::decode(upper, j, a[0], a[2]);
        if constexpr (TILES > 1) Weights::decode(lower, j, a[1], a[3]);
        const uint4 four = x[j / 2];
        const u32 b[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
        mma_bf16_16816(sum, a, b);
    }
}

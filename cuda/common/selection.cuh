// The largest of a row of scores, in order, by one block: a radix select and a sort.
//
// Keys are the scores' bits made to order like integers. A radix select in digits of 11, 11 and 10
// bits finds the key of the last place: each pass counts the digits of the keys that agree so far. A
// pass in order of index then collects every key above it, and of the equal ones the first; a bitonic
// sort by (key, index) puts them in place. Integers only: the order in which threads count does not
// show.
//
// Before the include: THREADS of the block, and ENTRIES that can be sorted, a power of two. Scores may
// be anything with [i32].
#pragma once

#include "common/scan.cuh"

constexpr int DIGIT_BITS = 11;
constexpr int BINS = 1 << DIGIT_BITS;
constexpr int AHEAD = 8;       // scores that a thread loads before it counts the first
constexpr int PER_THREAD = 4;  // neighbouring scores that a thread collects in one step
constexpr int STEP = THREADS * PER_THREAD;

static_assert(STEP < 1 << 15, "two counts of a step share an integer");

// What the threads of a block share.
struct Board {
    u64 entry[ENTRIES];  // keys with their indices; larger is better, none is 0
    i32 bins[BINS];
    i32 scratch[32];
    u32 digit;  // of the last place
    i32 equal;  // how many of the first places have that digit, among those that agree so far
};

// Larger scores have larger keys; NaN has the smallest, below minus infinity.
__device__ __forceinline__ u32 key_of(float score) {
    const u32 bits = score == 0.0f ? 0u : __float_as_uint(score);
    if (score != score) return 0u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Adds one to the bin of every lane that has one. Equal scores fall into one bin, which would
// queue up a whole warp: the lanes that agree with the first are counted at once.
__device__ __forceinline__ void count_digit(i32* bins, bool has, u32 digit) {
    const u32 lanes = __ballot_sync(FULL_WARP, has);
    if (lanes == 0) return;
    const i32 leader = __ffs(lanes) - 1;
    const u32 common = __shfl_sync(FULL_WARP, digit, leader);
    const u32 agreeing = __ballot_sync(FULL_WARP, has && digit == common);
    if ((i32)(threadIdx.x & 31) == leader) atomicAdd(&bins[common], __popc(agreeing));
    if (has && digit != common) atomicAdd(&bins[digit], 1);
}

// The digit of place `place` (1 ..) from the top, by the counts in board.bins, into board.digit, and how
// many of the first places have it into board.equal.
__device__ __forceinline__ void find_digit(Board& board, i32 place) {
    // Thread i looks at some bins from the top down.
    constexpr int OWN = BINS / THREADS > 0 ? BINS / THREADS : 1;
    const i32 top = BINS - 1 - threadIdx.x * OWN;
    i32 mine = 0, all;
    for (i32 i = 0; i < OWN && top - i >= 0; ++i) mine += board.bins[top - i];
    i32 before = block_count_before(mine, board.scratch, all);
    if (before < place && place <= before + mine) {
        i32 digit = top;
        while (before + board.bins[digit] < place) before += board.bins[digit--];
        board.digit = digit;
        board.equal = place - before;
    }
    __syncthreads();
}

// The key of place `places` (1 .. count) of the first `count` scores, and how many keys equal to it
// belong to the first `places`.
template <class Scores>
__device__ __forceinline__ u32 last_key(const Scores& score, i32 count, i32 places, Board& board,
                                        i32& equal) {
    u32 prefix = 0, mask = 0;
    equal = places;
#pragma unroll 1
    for (i32 shift = 32 - DIGIT_BITS; mask != ~0u; shift -= DIGIT_BITS) {
        const u32 at = shift < 0 ? 0 : shift;
        for (i32 i = threadIdx.x; i < BINS; i += THREADS) board.bins[i] = 0;
        __syncthreads();
        for (i32 first = 0; first < count; first += AHEAD * THREADS) {
            u32 key[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const i32 n = first + i * THREADS + threadIdx.x;
                key[i] = n < count ? key_of(score[n]) : 0u;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const bool has = first + i * THREADS + threadIdx.x < count;
                count_digit(board.bins, has && (key[i] & mask) == prefix, (key[i] & ~mask) >> at);
            }
        }
        __syncthreads();
        find_digit(board, equal);
        prefix |= board.digit << at;
        mask = at == 0 ? ~0u : ~0u << at;
        equal = board.equal;
    }
    return prefix;
}

// Descending bitonic sort of the first `count` entries, a power of two. Thread i of a step handles pair i, so strides up to 32 stay inside the 64
// entries of a warp, and a warp's barrier is enough between two such steps.
__device__ __forceinline__ void sort_descending(Board& board, i32 count) {
    u64* entry = board.entry;
    __syncthreads();
    for (i32 size = 2; size <= count; size *= 2) {
        for (i32 stride = size / 2; stride > 0; stride /= 2) {
            for (i32 i = threadIdx.x; i < count / 2; i += THREADS) {
                const i32 low = 2 * i - (i & (stride - 1)), high = low + stride;
                const u64 a = entry[low], b = entry[high];
                if ((a < b) == ((low & size) == 0)) {
                    entry[low] = b;
                    entry[high] = a;
                }
            }
            const i32 next = stride > 1 ? stride / 2 : size;
            if (stride > 32 || next > 32)
                __syncthreads();
            else
                __syncwarp();
        }
    }
    __syncthreads();
}

// A key with its index.
__device__ __forceinline__ u64 pack(u32 key, i32 index) { return (u64)key << 32 | (u32)~index; }

// All scores in order of index; returns how many NaN this thread met.
template <class Scores>
__device__ __forceinline__ i32 take_all(const Scores& score, i32 count, Board& board) {
    i32 bad = 0;
    for (i32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 key = key_of(score[i]);
        bad += key == 0;
        board.entry[i] = pack(key, i);
    }
    return bad;
}

// The largest `places` scores, those above the last key first; returns as take_all.
template <class Scores>
__device__ __forceinline__ i32 take_largest(const Scores& score, i32 count, i32 places,
                                            Board& board) {
    i32 equal;
    const u32 last = last_key(score, count, places, board, equal);
    i32 above_before = 0, equal_before = 0, bad = 0;
    for (i32 first = 0; first < count; first += STEP) {
        const i32 own = first + threadIdx.x * PER_THREAD;
        u32 key[PER_THREAD];
        i32 mine = 0;  // above in the low half, equal in the high half
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            if (own + i >= count) continue;
            key[i] = key_of(score[own + i]);
            bad += key[i] == 0;
            mine += key[i] > last ? 1 : key[i] == last ? 1 << 16 : 0;
        }
        i32 all;
        const i32 before = block_count_before(mine, board.scratch, all);
        i32 above = above_before + (before & 0xffff);
        i32 same = equal_before + (before >> 16);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            if (own + i >= count) continue;
            if (key[i] > last) board.entry[above++] = pack(key[i], own + i);
            if (key[i] != last) continue;
            if (same < equal) board.entry[places - equal + same] = pack(key[i], own + i);
            ++same;
        }
        above_before += all & 0xffff;
        equal_before += all >> 16;
    }
    return bad;
}

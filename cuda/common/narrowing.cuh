// The largest of many scores by one block that knows how often each first digit occurs.
//
// One pass over the scores, or over a list that has all that can be chosen, finds what has the digit of
// the last place or a larger one. What is left is at most ENTRIES or narrowed down in shared memory,
// digit by digit; and if even equal keys are too many, the passes of common/selection.cuh follow. The
// places of the chosen are counted: among all if they are few, otherwise in buckets. (score, index) is a
// total order, so none of this shows.
//
// Before the include: as for common/selection.cuh.
#pragma once

#include "common/selection.cuh"

constexpr int WAITING = 2048;  // entries that can be narrowed down
constexpr int SCANNED = 128;   // bytes that a thread loads before it looks at the first
constexpr int FIRST_BIT = 32 - DIGIT_BITS;
constexpr int RANKED = 128;  // entries, at most, whose ranks are counted among all
static_assert(RANKED <= THREADS, "a thread counts for one entry");

struct Narrowing {
    Board board;
    i32 found;
    u32 most[THREADS / 32], complement[THREADS / 32];
};

__device__ __forceinline__ u32 first_digit(float score) { return key_of(score) >> FIRST_BIT; }

// Which scores have keys from one on whose bits below the first digit are 0: a single comparison.
struct Bar {
    float least;
    bool all;

    static __device__ __forceinline__ Bar at(u32 key) {
        constexpr u32 NEGATIVE_INFINITY = 0x007fffffu;  // its key; below it there is only NaN's
        const u32 bits = key & 0x80000000u ? key ^ 0x80000000u : ~key;
        return {key <= NEGATIVE_INFINITY ? -INF_F32 : __uint_as_float(bits), key == 0};
    }
    __device__ __forceinline__ bool clears(float score) const { return all || score >= least; }
};

// Scores of a row. What other blocks wrote is read past L1, which may hold older bytes.
struct Fresh {
    const float* score;

    __device__ __forceinline__ float operator[](i32 n) const { return __ldcg(score + n); }
    __device__ __forceinline__ bool clears(float at, const Bar& bar) const {
        return bar.clears(at);
    }
    __device__ __forceinline__ u64 entry(float at, i32 n) const { return pack(key_of(at), n); }
};

// Entries that lie in global memory.
struct Listed {
    const u64* list;

    __device__ __forceinline__ u64 operator[](i32 n) const { return __ldcg(list + n); }
    __device__ __forceinline__ bool clears(u64, const Bar&) const { return true; }
    __device__ __forceinline__ u64 entry(u64 at, i32) const { return at; }
};

// Behind what is in the list already, from the lanes that have something; counted, and left out, where
// there is no room.
__device__ __forceinline__ void append(u64* list, i32 room, i32& length, bool has, u64 entry) {
    const u32 lanes = __ballot_sync(FULL_WARP, has);
    if (lanes == 0) return;
    const int lane = threadIdx.x % 32, leader = __ffs(lanes) - 1;
    i32 at = 0;
    if (lane == leader) at = atomicAdd(&length, __popc(lanes));
    at = __shfl_sync(FULL_WARP, at, leader) + __popc(lanes & ((1u << lane) - 1u));
    if (has && at < room) list[at] = entry;
}

// The numbers with keys from `from` on become entries, those below it but from `low` on wait. A barrier
// must follow. Places are counted, for a place that threads take by an atomic has them queue up.
template <class Source>
__device__ __forceinline__ void collect(const Source& source, i32 count, u32 from, u32 low,
                                        u64* waiting, Narrowing& to) {
    const Bar bar = Bar::at(low);
    using Number = decltype(source[0]);
    constexpr int AT_ONCE = SCANNED / sizeof(Number);
    static_assert(AT_ONCE <= 32 && AT_ONCE * THREADS < 1 << 15, "bits of a word, halves of counts");
    i32 found = 0, kept = 0;
    for (i32 first = 0; first < count; first += AT_ONCE * THREADS) {
        Number held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const i32 n = first + i * THREADS + threadIdx.x;
            held[i] = {};
            if (n < count) held[i] = source[n];
        }
        u32 enters = 0, waits = 0;  // a bit for a number
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const i32 n = first + i * THREADS + threadIdx.x;
            if (n >= count || !source.clears(held[i], bar)) continue;
            const u32 key = (u32)(source.entry(held[i], n) >> 32);
            if (key >= from)
                enters |= 1u << i;
            else if (key >= low)
                waits |= 1u << i;
        }
        i32 all;
        const i32 before = block_count_before(__popc(enters) | __popc(waits) << 16,
                                              to.board.scratch, all);
        i32 entry_at = found + (before & 0xffff), waiting_at = kept + (before >> 16);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (!((enters | waits) >> i & 1)) continue;
            const u64 entry = source.entry(held[i], first + i * THREADS + threadIdx.x);
            if (enters >> i & 1) {
                if (entry_at < ENTRIES) to.board.entry[entry_at] = entry;
                ++entry_at;
            } else {
                if (waiting_at < WAITING) waiting[waiting_at] = entry;
                ++waiting_at;
            }
        }
        found += all & 0xffff;
        kept += all >> 16;
    }
    if (threadIdx.x == 0) to.found = found;
}

// Counts the digit at bit `at` of the waiting keys that agree with the prefix above it.
__device__ __forceinline__ void count_waiting(const u64* waiting, i32 count, u32 prefix, u32 at,
                                              i32 bits, Board& board) {
    for (i32 i = threadIdx.x; i < BINS; i += THREADS) board.bins[i] = 0;
    __syncthreads();
    const u32 mask = ~0u << (at + bits);
    for (i32 first = 0; first < count; first += THREADS) {
        const i32 i = first + threadIdx.x;
        const u32 key = i < count ? (u32)(waiting[i] >> 32) : 0u;
        count_digit(board.bins, i < count && (key & mask) == prefix, (key & ~mask) >> at);
    }
    __syncthreads();
}

// The entries of a row of `count` scores, of which `places` are chosen; returns how many they are, the
// chosen ones among them. board.bins holds the counts of the first digit, entries are 0; source has
// `length` numbers, all that can be chosen among them. waiting: room for WAITING.
template <class Source>
__device__ __forceinline__ i32 take_first(const Source& source, i32 length, const Fresh& score,
                                          i32 count, i32 places, u64* waiting, Narrowing& shared) {
    Board& board = shared.board;
    find_digit(board, places);
    i32 at = FIRST_BIT, equal = board.equal, same = board.bins[board.digit];
    const i32 first_same = same;
    u32 prefix = board.digit << at;
    if (places - equal + same <= ENTRIES) {
        collect(source, length, prefix, prefix, waiting, shared);
        return places - equal + same;
    }
    if (same <= WAITING) {
        collect(source, length, prefix + (1u << at), prefix, waiting, shared);
        __syncthreads();
#pragma unroll 1
        while (places - equal + same > ENTRIES && at > 0) {
            const i32 bits = min(at, DIGIT_BITS);
            at -= bits;
            count_waiting(waiting, first_same, prefix, at, bits, board);
            find_digit(board, equal);
            prefix |= board.digit << at;
            equal = board.equal;
            same = board.bins[board.digit];
            __syncthreads();
        }
        if (places - equal + same <= ENTRIES) {
            for (i32 first = 0; first < first_same; first += THREADS) {
                const i32 i = first + threadIdx.x;
                const u64 entry = i < first_same ? waiting[i] : 0;
                append(board.entry, ENTRIES, shared.found,
                       i < first_same && (u32)(entry >> 32) >= prefix, entry);
            }
            return places - equal + same;
        }
    }
    for (i32 i = threadIdx.x; i < ENTRIES; i += THREADS) board.entry[i] = 0;
    __syncthreads();
    take_largest(score, count, places, board);
    return places;
}

// The ids of few entries, each at the place that the number of larger ones gives it. `count`: a power
// of two, with entries of 0 behind the last.
__device__ __forceinline__ void store_by_rank(const Board& board, i32 count, i32 places, i32 offset,
                                              i32* ids) {
    const i32 sharers = min(THREADS / count, 32);  // neighbouring threads that count for one entry
    const i32 own = threadIdx.x / sharers, share = threadIdx.x % sharers;
    const u64 entry = own < count ? board.entry[own] : 0;
    i32 larger = 0;
#pragma unroll 4
    for (i32 i = share; i < count; i += sharers) larger += board.entry[i] > entry;
    for (i32 step = 1; step < sharers; step *= 2)
        larger += __shfl_xor_sync(FULL_WARP, larger, step);
    if (entry != 0 && share == 0 && larger < places) ids[larger] = (i32) ~(u32)entry + offset;
}

// The same by buckets, into which the range of the keys is cut evenly, largest first: an entry's place
// is where its bucket begins, plus the number of larger ones in there. False, and nothing stored, where
// a bucket has more than CROWD. placed: room for all entries.
__device__ __forceinline__ bool store_by_bucket(Narrowing& shared, i32 taken, i32 places,
                                                i32 offset, i32* ids, u64* placed) {
    constexpr int PER = (ENTRIES + THREADS - 1) / THREADS, OWN_BINS = BINS / THREADS;
    constexpr i32 CROWD = 32;
    Board& board = shared.board;
    const i32 warp = threadIdx.x / 32;
    u64 entry[PER];
    u32 most = 0, complement = 0;  // of the least
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        entry[i] = at < taken ? board.entry[at] : 0;
        if (at < taken) {
            most = max(most, (u32)(entry[i] >> 32));
            complement = max(complement, ~(u32)(entry[i] >> 32));
        }
    }
    most = __reduce_max_sync(FULL_WARP, most);
    complement = __reduce_max_sync(FULL_WARP, complement);
    if (threadIdx.x % 32 == 0) {
        shared.most[warp] = most;
        shared.complement[warp] = complement;
    }
    for (int i = threadIdx.x; i < BINS; i += THREADS) board.bins[i] = 0;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) {
        most = max(most, shared.most[w]);
        complement = max(complement, shared.complement[w]);
    }
    const u32 shift = max(0, 32 - __clz((int)(most - ~complement)) - DIGIT_BITS);
    i32 slot[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        if (at < taken)
            slot[i] = atomicAdd(&board.bins[(most - (u32)(entry[i] >> 32)) >> shift], 1);
    }
    __syncthreads();
    i32 size[OWN_BINS], mine = 0, all;
    bool crowded = false;
#pragma unroll
    for (int i = 0; i < OWN_BINS; ++i) {
        size[i] = board.bins[threadIdx.x * OWN_BINS + i];
        crowded = crowded || size[i] > CROWD;
        mine += size[i];
    }
    if (__syncthreads_or(crowded)) return false;
    i32 begin = block_count_before(mine, board.scratch, all);
#pragma unroll
    for (int i = 0; i < OWN_BINS; ++i) {
        board.bins[threadIdx.x * OWN_BINS + i] = begin;
        begin += size[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        if (at < taken)
            placed[board.bins[(most - (u32)(entry[i] >> 32)) >> shift] + slot[i]] = entry[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const i32 at = i * THREADS + threadIdx.x;
        if (at >= taken) continue;
        const u32 bucket = (most - (u32)(entry[i] >> 32)) >> shift;
        const i32 end = bucket + 1 < BINS ? board.bins[bucket + 1] : taken;
        i32 place = board.bins[bucket];
        if (place >= places) continue;
        for (i32 other = place; other < end; ++other) place += placed[other] > entry[i];
        if (place < places) ids[place] = (i32) ~(u32)entry[i] + offset;
    }
    return true;
}

// The ids of the first `places` of `taken` entries, largest first. placed: room for all entries.
__device__ __forceinline__ void store_ids(Narrowing& shared, i32 taken, i32 places, i32 offset,
                                          i32* ids, u64* placed) {
    Board& board = shared.board;
    __syncthreads();
    i32 sorted = 2;
    while (sorted < taken) sorted *= 2;
    if (sorted <= RANKED) return store_by_rank(board, sorted, places, offset, ids);
    if (store_by_bucket(shared, taken, places, offset, ids, placed)) return;
    sort_descending(board, sorted);
    for (i32 i = threadIdx.x; i < places; i += THREADS)
        ids[i] = (i32) ~(u32)board.entry[i] + offset;
}

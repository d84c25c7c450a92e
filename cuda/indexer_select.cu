// indexer_select: the indexer's scores and the ordered selection of the largest in one launch
//
//   q bf16 [T, H, K]    keys bf16 [N, K]    weights f32 [T, H]    visible i32 [T]
//   score f32 [T, N]    ids i32 [T, S], rows ids_stride apart    nans i32 [T]
//   bins i32 [T, 2048] and ticket i32 [T], zero before a launch and zero again after it
//   H at most 64; K is WIDTH, a multiple of 16 up to 128
//
// The bytes are those of indexer_score_f32, then topk.
//
// Scores. Queries and keys hold what FP4 left, so that a product of theirs usually has so few bits that
// every partial sum is exact (common/exact_sums.cuh): then the order of the sum cannot show, and tensor
// cores give the bytes of the chain. Otherwise a warp adds the chain of indexer_score_f32. What follows
// a product has that kernel's order: a lane's two heads by fma, then the butterfly over 32 heads, whose
// first two steps meet in one thread here.
//
// One block of 16 warps takes KEYS keys of one query, a warp KEY_TILES times eight; a lane loads and
// converts its share of a key at once. Where there are more scores than places, every visible one is
// counted in `bins` by its first digit (common/selection.cuh); otherwise NaN alone is, whose digit is 0.
//
// Selection. The block that takes a row's last ticket has the first digit's counts, so one pass over
// the scores finds what can be chosen: of few the ranks are counted; up to ENTRIES are sorted at once;
// more are narrowed down in shared memory, digit by digit; and if even equal keys are too many, the
// passes of topk follow. (score, index) is a total order, so none of this shows; nor does who is last, and nobody waits.
#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/exact_sums.cuh"
#include "common/mma.cuh"
#include "common/overlap.cuh"
#include "common/tickets.cuh"

#ifndef WIDTH
#define WIDTH 128
#endif
#ifndef KEY_TILES
#define KEY_TILES 2
#endif
#ifndef PLACES
#define PLACES 512
#endif
static_assert(WIDTH % 16 == 0 && WIDTH >= 16 && WIDTH <= 128,
              "K must be a multiple of 16 up to 128");

constexpr int WARPS = 16;
constexpr int THREADS = 32 * WARPS;
constexpr int ENTRIES = 2 * PLACES;
#include "common/selection.cuh"

constexpr int WARP_KEYS = 8 * KEY_TILES;
constexpr int KEYS = WARPS * WARP_KEYS;
constexpr int HEADS = 64;
constexpr int WARP_HEADS = HEADS / WARPS;
constexpr int STEPS = WIDTH / 16;  // products of a dot
constexpr int PITCH = WIDTH + 16;  // bf16 of a head: rows of a load fall on different banks
constexpr int WAITING = 2048;      // entries that can be narrowed down
constexpr int SCANNED = 32;        // scores that a thread loads before it looks at the first
#ifndef RANKED_ENTRIES
#define RANKED_ENTRIES 256
#endif
constexpr int RANKED = RANKED_ENTRIES;  // entries, at most, whose ranks are counted and not sorted
static_assert(RANKED <= THREADS, "a thread counts for one entry");

struct Shared {
    Board board;
    Reach reach[WARPS];
    float weights[HEADS];
    i32 found, waiting;
    bool last;
};

// Four bf16 as the bits of floats.
__device__ __forceinline__ uint4 load_widened(const bf16* from) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    return make_uint4(raw.x << 16, raw.x & 0xffff0000u, raw.y << 16, raw.y & 0xffff0000u);
}

// What a lane has of its warp's heads, zeros past the last.
using Query = uint4[WARP_HEADS];
__device__ __forceinline__ void load_query(const bf16* q, i32 H, Query& v) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < WARP_HEADS; ++i) {
        const int head = warp * WARP_HEADS + i;
        v[i] = head < H && 4 * lane < WIDTH ? load_widened(q + head * WIDTH + 4 * lane)
                                            : make_uint4(0, 0, 0, 0);
    }
}

// The query's heads as bf16, and what is known of them; by all warps.
__device__ __forceinline__ void keep_query(const Query& query, const float* weights, i32 H,
                                           float wscale, bf16* tile, Shared& shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Reach reach = reach_of_nothing();
#pragma unroll
    for (int i = 0; i < WARP_HEADS; ++i) {
        const int head = warp * WARP_HEADS + i;
        Span span{0, 0, ~0u};
        if (4 * lane < WIDTH) {
            const uint4 v = query[i];
            widen(span, v.x);
            widen(span, v.y);
            widen(span, v.z);
            widen(span, v.w);
            *reinterpret_cast<uint2*>(tile + head * PITCH + 4 * lane) = make_uint2(
                bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) widen_by_lane(span, offset);
        take_in(reach, span);
    }
    if (lane == 0) shared.reach[warp] = reach;
    for (int h = threadIdx.x; h < HEADS; h += THREADS)
        shared.weights[h] = h < H ? weights[h] * wscale : 0.0f;
}

__device__ __forceinline__ Reach reach_of_all(const Shared& shared) {
    Reach all = shared.reach[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) {
        take_in(all, shared.reach[w]);
    }
    return all;
}

// A product's part of a score, added to c.
__device__ __forceinline__ float weighted(float product, float weight, float c) {
    return fmaf(product <= 0 ? 0.0f : product, weight, c);
}

// The scores of eight keys from their bf16 elements: of keys 2 pair and 2 pair + 1 on every lane.
__device__ __forceinline__ float2 scores_of_tile(const u32 (&key)[STEPS][2], const bf16* tile,
                                                 const float* weights) {
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    float total[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // heads below 16 of every 32, then the others
        float sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                const bf16* at = tile + (32 * m + 16 * half + group) * PITCH + 16 * k + 4 * pair;
                const uint2 upper = *reinterpret_cast<const uint2*>(at);
                const uint2 lower = *reinterpret_cast<const uint2*>(at + 8 * PITCH);
                const u32 a[4] = {upper.x, lower.x, upper.y, lower.y};
                mma_bf16_16816(sum[m], a, key[k]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = 16 * half + 8 * (i / 2) + group;
            float one = 0.0f;
            one = weighted(sum[0][i], weights[head], one);
            one = weighted(sum[1][i], weights[head + 32], one);
            total[i] = half == 0 ? one : total[i] + one;
        }
    }
    float2 score = make_float2(total[0] + total[2], total[1] + total[3]);
#pragma unroll
    for (int offset = 16; offset >= 4; offset /= 2) {
        score.x += __shfl_xor_sync(FULL_WARP, score.x, offset);
        score.y += __shfl_xor_sync(FULL_WARP, score.y, offset);
    }
    return score;
}

// One key's score by the chain, on every lane.
__device__ __forceinline__ float chained_score(const bf16* q, const bf16* key, const float* weights,
                                               i32 H) {
    const int lane = threadIdx.x % 32;
    float total = 0.0f;
#pragma unroll 1
    for (int head = lane; head < H; head += 32) {
        float sum = 0.0f;
#pragma unroll 1
        for (int k = 0; k < WIDTH; k += 4) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum = fmaf(bf16_to_f32(q[head * WIDTH + k + i]), bf16_to_f32(key[k + i]), sum);
        }
        total = weighted(sum, weights[head], total);
    }
    return warp_sum(total);
}

// Where scores and their counts go; N of them, of which some are shown.
struct Place {
    float* score;
    i32* bins;
    i32 shown, N;
    bool crowded;  // more are shown than there are places

    __device__ __forceinline__ void store(i32 n, float value) const {
        if (n >= N) return;
        score[n] = n < shown ? value : -INF_F32;
        const u32 digit = key_of(value) >> (32 - DIGIT_BITS);
        if (n < shown && (crowded || digit == 0)) atomicAdd(bins + digit, 1);
    }
};

// What a lane has of its warp's keys, from `first` on: elements 16 k + 4 pair .. + 3 of key `group` of
// each eight. A key that is not shown is not read: it may hold anything.
using Keys = uint4[KEY_TILES][STEPS];
__device__ __forceinline__ void load_keys(const bf16* keys, i32 first, i32 shown, Keys& v) {
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < KEY_TILES; ++t) {
        const i32 n = first + 8 * t + group;
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
            v[t][k] = n < shown ? load_widened(keys + (i64)n * WIDTH + 16 * k + 4 * pair)
                                : make_uint4(0, 0, 0, 0);
    }
}

// The scores of this warp's keys, from `first` on.
__device__ __forceinline__ void score_keys(const bf16* q, const bf16* keys, const Keys& v,
                                           const bf16* tile, const Shared& shared,
                                           const Reach& reach, const Place& place, i32 first,
                                           i32 H) {
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    u32 key[KEY_TILES][STEPS][2];
    bool exact = true;
#pragma unroll
    for (int t = 0; t < KEY_TILES; ++t) {
        Span span{0, 0, ~0u};
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            widen(span, v[t][k].x);
            widen(span, v[t][k].y);
            widen(span, v[t][k].z);
            widen(span, v[t][k].w);
            key[t][k][0] = bf16_pair(v[t][k].x, v[t][k].y);
            key[t][k][1] = bf16_pair(v[t][k].z, v[t][k].w);
        }
        widen_by_lane(span, 1);
        widen_by_lane(span, 2);
        exact = exact && sums_are_exact(reach, span);
    }
    if (__ballot_sync(FULL_WARP, exact) == FULL_WARP) {
#pragma unroll
        for (int t = 0; t < KEY_TILES; ++t) {
            const float2 made = scores_of_tile(key[t], tile, shared.weights);
            const i32 n = first + 8 * t + 2 * pair;
            if (group < 2) place.store(n + group, group ? made.y : made.x);
        }
        return;
    }
#pragma unroll 1
    for (i32 n = first; n < min(first + WARP_KEYS, place.N); ++n) {
        const float made = n < place.shown
                               ? chained_score(q, keys + (i64)n * WIDTH, shared.weights, H)
                               : 0.0f;
        if (threadIdx.x % 32 == 0) place.store(n, made);
    }
}

// Whether this block is the last of `count` to come here.
__device__ __forceinline__ bool is_last(i32* ticket, u32 count, bool& last) {
    __syncthreads();
    if (count == 1) return true;
    if (threadIdx.x == 0) last = take_last_ticket(ticket, count);
    __syncthreads();
    return last;
}

// What other blocks wrote is read past L1, which may hold older bytes.
struct Fresh {
    const float* at;
    __device__ __forceinline__ float operator[](i32 n) const { return __ldcg(at + n); }
};

// Behind what is in the list already, from the lanes that have something.
__device__ __forceinline__ void append(u64* list, i32& length, bool has, u64 entry) {
    const u32 lanes = __ballot_sync(FULL_WARP, has);
    if (lanes == 0) return;
    const int lane = threadIdx.x % 32, leader = __ffs(lanes) - 1;
    i32 at = 0;
    if (lane == leader) at = atomicAdd(&length, __popc(lanes));
    at = __shfl_sync(FULL_WARP, at, leader);
    if (has) list[at + __popc(lanes & ((1u << lane) - 1u))] = entry;
}

// The scores with keys from `from` on become entries, those below it but from `low` on wait.
__device__ __forceinline__ void collect(const Fresh& score, i32 count, u32 from, u32 low,
                                        u64* waiting, Shared& shared) {
    for (i32 first = 0; first < count; first += SCANNED * THREADS) {
        u32 key[SCANNED];
#pragma unroll
        for (int i = 0; i < SCANNED; ++i) {
            const i32 n = first + i * THREADS + threadIdx.x;
            key[i] = n < count ? key_of(score[n]) : 0u;
        }
#pragma unroll
        for (int i = 0; i < SCANNED; ++i) {
            const i32 n = first + i * THREADS + threadIdx.x;
            const bool chosen = n < count && key[i] >= from;
            const bool waits = n < count && key[i] < from && key[i] >= low;
            append(shared.board.entry, shared.found, chosen, pack(key[i], n));
            if (low < from) append(waiting, shared.waiting, waits, pack(key[i], n));
        }
    }
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

// The entries of a row of more scores than places; returns how many they are, the first places among
// them. board.bins holds the counts of the first digit.
__device__ __forceinline__ i32 take_first(const Fresh& score, i32 count, i32 places, u64* waiting,
                                          Shared& shared) {
    Board& board = shared.board;
    find_digit(board, places);
    i32 at = 32 - DIGIT_BITS, equal = board.equal, same = board.bins[board.digit];
    const i32 first_same = same;
    u32 prefix = board.digit << at;
    if (places - equal + same <= ENTRIES) {
        collect(score, count, prefix, prefix, waiting, shared);
        return places - equal + same;
    }
    if (same <= WAITING) {
        collect(score, count, prefix + (1u << at), prefix, waiting, shared);
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
                append(board.entry, shared.found, i < first_same && (u32)(entry >> 32) >= prefix,
                       entry);
            }
            return places - equal + same;
        }
    }
    for (i32 i = threadIdx.x; i < ENTRIES; i += THREADS) board.entry[i] = 0;
    __syncthreads();
    take_largest(score, count, places, board);
    return places;
}

// The ids of few entries, each at the place that the number of larger ones gives it: shorter than the
// steps of a sort. `count`: a power of two, with entries of 0 behind the last.
__device__ __forceinline__ void store_by_rank(const Board& board, i32 count, i32 places, i32 offset,
                                              i32* ids) {
    __syncthreads();
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    indexer_select(const bf16* q, const bf16* keys, const float* weights, const i32* visible,
                   float* score, i32* ids, i32* nans, i32* bins, i32* ticket, i32 H, i32 N, i32 S,
                   i64 ids_stride, float wscale, i32 offset) {
    __shared__ Shared shared;
    // The query's heads, later the entries that wait.
    __shared__ __align__(16) u64 room[HEADS * PITCH / 4 > WAITING ? HEADS * PITCH / 4 : WAITING];
    bf16* const tile = reinterpret_cast<bf16*>(room);
    const i64 row = blockIdx.y;
    let_next_start();
    wait_for_previous();
    q += row * H * WIDTH;
    score += row * N;
    bins += row * BINS;
    // On their way together with the number of visible keys, for which the keys must wait.
    Query query;
    load_query(q, H, query);
    const i32 count = max(0, min(visible[row], N));
    const i32 places = min(S, count);
    const bool crowded = count > places;
    const i32 own = blockIdx.x * KEYS + (i32)threadIdx.x / 32 * WARP_KEYS;
    if ((i32)blockIdx.x * KEYS < count) {
        Keys v;
        load_keys(keys, own, count, v);
        keep_query(query, weights + row * H, H, wscale, tile, shared);
        __syncthreads();
        if (own < count)
            score_keys(q, keys, v, tile, shared, reach_of_all(shared),
                       Place{score, bins, count, N, crowded}, own, H);
    }
    if (own >= count)
        for (i32 n = own + threadIdx.x % 32; n < min(own + WARP_KEYS, N); n += 32)
            score[n] = -INF_F32;
    if (!is_last(ticket + row, gridDim.x, shared.last)) return;

    Board& board = shared.board;
    for (i32 i = threadIdx.x; i < (crowded ? BINS : 1); i += THREADS) {
        board.bins[i] = __ldcg(bins + i);
        bins[i] = 0;
    }
    for (i32 i = threadIdx.x; i < ENTRIES; i += THREADS) board.entry[i] = 0;
    if (threadIdx.x == 0) shared.found = shared.waiting = 0;
    __syncthreads();
    if (threadIdx.x == 0) nans[row] = board.bins[0];  // no other key has that digit
    i32 taken = count;
    if (crowded) {
        taken = take_first(Fresh{score}, count, places, room, shared);
    } else {
        take_all(Fresh{score}, count, board);
    }
    ids += row * ids_stride;
    for (i32 i = places + threadIdx.x; i < S; i += THREADS) ids[i] = -1;
    i32 sorted = 2;
    while (sorted < taken) sorted *= 2;
    if (sorted <= RANKED) return store_by_rank(board, sorted, places, offset, ids);
    sort_descending(board, sorted);
    for (i32 i = threadIdx.x; i < places; i += THREADS)
        ids[i] = (i32) ~(u32)board.entry[i] + offset;
}

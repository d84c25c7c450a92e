// indexer_select: the indexer's scores and the ordered selection of the largest in one launch
//
//   q bf16 [T, H, K]    keys bf16 [N, K]    weights f32 [T, H]    visible i32 [T]
//   score f32 [T, N]    ids i32 [T, S], rows ids_stride apart    nans i32 [T]
//   bins i32 [T, 2048], list i64 [T, L] and tickets i32 [T, 2], zero before a launch and after it
//   K is WIDTH and H is HEADS
//
// The bytes are those of indexer_score_f32, then topk. Scores are made by common/index_scores.cuh.
//
// A block has 16 warps, and a warp takes 32 keys at a time: its next ones are on their way while it
// finishes these. A row's visible keys are for one block if they are one turn of its warps: it needs
// no memory but shared, and its scores are entries at once. More keys are shared out to as many
// blocks as get SHARE each, up to all; the others leave.
//
// Otherwise every block counts its scores' first digits (common/selection.cuh), adds the counts to
// `bins`, and takes a ticket. The last one has the counts of all, so one pass over the scores finds
// what can be chosen (common/narrowing.cuh). More than SCANS scores are too many for that: there a block
// sees how far `bins` have come when it has added its own. The digit of the last place among these
// bounds that of the last place of all from below, so only what reaches it is put into `list`, and
// the last block reads that instead. Blocks that come early list more than late ones; where the list
// is too short for all, the scores are read after all. So neither who is last nor who was seen shows,
// and nobody waits.
#include "common/index_scores.cuh"
#include "common/overlap.cuh"
#include "common/tickets.cuh"

#ifndef LIST
#define LIST 1
#endif
#ifndef SHARE
#define SHARE 128
#endif

constexpr int WARPS = 16;
constexpr int THREADS = 32 * WARPS;
// Scores that the last block reads all: of more, one block's instructions would take longer than lists.
constexpr i32 SCANS = 2 * LIST < 4096 ? 2 * LIST : 4096;
constexpr int TURN = WARPS * WARP_KEYS;  // keys of a block at a time
constexpr int ENTRIES = 2048;            // twice as many as can be chosen
#include "common/narrowing.cuh"

struct Shared {
    Narrowing narrowing;
    i32 nans, at;
    bool last;
};

// The heads; then entries that wait; then entries by their buckets.
union Room {
    Heads heads;
    u64 waiting[WAITING];
    u64 placed[ENTRIES];
};

// What is zero between launches, of one row.
struct Between {
    i32 *bins, *ticket, *listed;
    u64* list;
};

// The keys of a warp: WARP_KEYS from `first` on, and every `step` behind, below `count`.
struct Turns {
    i32 first, step, count;
};

// Scores that this thread wrote, some turns together.
struct Own {
    static constexpr int TURNS = 4;
    float held[TURNS];

    static __device__ __forceinline__ i32 at(const Turns& turns, i32 first, int i) {
        return key_of_lane(first + i * turns.step);
    }
    __device__ __forceinline__ void load(const float* score, const Turns& turns, i32 first) {
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            const i32 n = at(turns, first, i);
            held[i] = n < turns.count ? score[n] : 0.0f;
        }
    }
    // Those that clear the bar, into the list.
    __device__ __forceinline__ void append_to(u64* list, i32& length, const Turns& turns, i32 first,
                                              const Bar& bar) const {
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            const i32 n = at(turns, first, i);
            append(list, WAITING, length, n < turns.count && bar.clears(held[i]),
                   pack(key_of(held[i]), n));
        }
    }
};

// Entries of this block's scores that may be chosen, as far as all scores counted until now tell.
__device__ __forceinline__ void list_own(const float* score, const Turns& turns, i32 places,
                                         const Between& between, u64* room, Shared& shared) {
    Board& board = shared.narrowing.board;
    Own own;
    own.load(score, turns, turns.first);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) board.bins[i] = see_count(between.bins + i);
    if (threadIdx.x == 0) board.digit = 0;  // stays, where fewer than the places are counted yet
    __syncthreads();
    find_digit(board, places);
    const Bar bar = Bar::at(board.digit << FIRST_BIT);
    for (i32 first = turns.first; first < turns.count; first += Own::TURNS * turns.step) {
        if (first > turns.first) own.load(score, turns, first);
        own.append_to(room, shared.narrowing.found, turns, first, bar);
    }
    __syncthreads();
    const i32 found = shared.narrowing.found;
    const bool fits = found <= WAITING;
    if (threadIdx.x == 0) shared.at = atomicAdd(between.listed, fits ? found : LIST + 1);
    __syncthreads();
    if (!fits || shared.at > LIST - found) return;
    for (i32 i = threadIdx.x; i < found; i += THREADS) between.list[shared.at + i] = room[i];
}

// The entries of a row from what all blocks left of it; returns how many they are.
__device__ __forceinline__ i32 take_shared_out(const float* score, i32 count, i32 places,
                                               const Between& between, u64* waiting,
                                               Shared& shared) {
    Narrowing& narrowing = shared.narrowing;
    const i32 listed = count > SCANS ? __ldcg(between.listed) : 0;
    for (i32 i = threadIdx.x; i < BINS; i += THREADS) {
        narrowing.board.bins[i] = __ldcg(between.bins + i);
        between.bins[i] = 0;
    }
    for (i32 i = threadIdx.x; i < ENTRIES; i += THREADS) narrowing.board.entry[i] = 0;
    if (threadIdx.x == 0) narrowing.found = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.nans = narrowing.board.bins[0];  // no other key has that digit
        *between.listed = 0;
    }
    const Fresh fresh{score};
    const bool complete = count > SCANS && listed <= LIST;
    const i32 taken = complete ? take_first(Listed{between.list}, listed, fresh, count, places,
                                            waiting, narrowing)
                               : take_first(fresh, count, fresh, count, places, waiting, narrowing);
    for (i32 i = threadIdx.x; i < min(listed, LIST); i += THREADS) between.list[i] = 0;
    return taken;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    indexer_select(const bf16* q, const bf16* keys, const float* weights, const i32* visible,
                   float* score, i32* ids, i32* nans, i32* bins, i64* list, i32* tickets, i32 N,
                   i32 S, i64 ids_stride, float wscale, i32 offset) {
    __shared__ Shared shared;
    __shared__ __align__(16) unsigned char bytes[sizeof(Room)];
    Room& room = *reinterpret_cast<Room*>(bytes);
    Board& board = shared.narrowing.board;
    const i64 row = blockIdx.y;
    let_next_start();
    wait_for_previous();
    // Together with the number of visible keys, for which keys must wait.
    HeadsOnWay<THREADS> on_way;
    on_way.load(q + row * HEADS * WIDTH, weights + row * HEADS);
    const i32 count = max(0, min(visible[row], N)), places = min(S, count);
    const i32 blocks = count <= TURN ? 1 : min((i32)gridDim.x, (count + SHARE - 1) / SHARE);
    const i32 warp = threadIdx.x / 32;
    const Turns turns{((i32)blockIdx.x + blocks * warp) * WARP_KEYS, blocks * TURN, count};
    score += row * N;
    const bool takes_part = (i32)blockIdx.x < blocks, alone = blocks == 1;
    Keys key;
    if (takes_part && turns.first < count) load_keys(keys, turns.first, count, key);
    for (i32 n = count + blockIdx.x * THREADS + threadIdx.x; n < N; n += gridDim.x * THREADS)
        score[n] = -INF_F32;
    for (int i = threadIdx.x; i < BINS; i += THREADS) board.bins[i] = 0;
    for (int i = threadIdx.x; i < TURN; i += THREADS) board.entry[i] = 0;
    if (threadIdx.x == 0) shared.nans = shared.narrowing.found = 0;
    if (!takes_part) return;
    on_way.keep(wscale, room.heads);
    __syncthreads();

    score_turns(keys, turns.first, turns.step, count, room.heads, key, [&](i32 n, float made) {
        score[n] = made;
        if (alone) {
            board.entry[n] = pack(key_of(made), n);
            if (made != made) atomicAdd(&shared.nans, 1);
        } else {
            atomicAdd(board.bins + first_digit(made), 1);
        }
    });

    i32 taken = count;
    __syncthreads();
    if (!alone) {
        const Between between{bins + row * BINS, tickets + 2 * row, tickets + 2 * row + 1,
                              (u64*)list + row * LIST};
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            if (board.bins[i] > 0) atomicAdd(between.bins + i, board.bins[i]);
        if (count > SCANS) list_own(score, turns, places, between, room.waiting, shared);
        __syncthreads();
        if (threadIdx.x == 0) shared.last = take_last_ticket(between.ticket, blocks);
        __syncthreads();
        if (!shared.last) return;
        taken = take_shared_out(score, count, places, between, room.waiting, shared);
    }
    if (threadIdx.x == 0) nans[row] = shared.nans;
    ids += row * ids_stride;
    for (i32 i = places + threadIdx.x; i < S; i += THREADS) ids[i] = -1;
    store_ids(shared.narrowing, taken, places, offset, ids, room.placed);
}

// What the blocks of a row of hyper_step have each, and what they send each other.
//
// Build constants: STREAMS, PARTS, PER_THREAD, CLUSTER, MOST_WARPS (of a block); CLUSTERED (whether blocks form clusters: where
// the card has them).
#pragma once

#include "common/cluster.cuh"
#include "common/mixing.cuh"

#ifndef CLUSTERED
#define CLUSTERED (HAS_CLUSTERS && CLUSTER > 1)
#endif
#if CLUSTERED
#define BLOCKS_OF_A_ROW CLUSTER_OF(CLUSTER)
#else
#define BLOCKS_OF_A_ROW
#endif

constexpr int NORM_WARPS = 16;  // of rms_norm
constexpr int NORM_THREADS = 32 * NORM_WARPS;
constexpr int FP8_GROUP = 128;                               // columns
constexpr int PARTS_EACH = (PARTS + CLUSTER - 1) / CLUSTER;  // of a block
constexpr int TEAM = CLUSTERED ? CLUSTER : 1;                // blocks of steps 2 and 3
constexpr int NORM_WARPS_EACH = NORM_WARPS / TEAM;
constexpr int GROUPS_EACH = (4 * PER_THREAD + TEAM - 1) / TEAM;
static_assert(NORM_WARPS % CLUSTER == 0, "blocks have equally many of rms_norm's warps");

// Sums of a warp, of each part, and warps, where a product has that many rows of fn.
template <int Rows>
constexpr int ROUNDS = (Rows + MOST_WARPS) / MOST_WARPS;
template <int Rows>
constexpr int WARPS = (Rows + ROUNDS<Rows>) / ROUNDS<Rows> < 8
                          ? 8
                          : (Rows + ROUNDS<Rows>) / ROUNDS<Rows>;
// Whether a head comes behind, and no sub-block: it takes one format, and has nothing to mix.
template <int Rows>
constexpr bool IS_EXIT = Rows == STREAMS;

struct Weights {
    const float *fn, *scale, *base, *gain;
    float mix_eps, eps, norm_eps;
};
struct Written {
    float *x, *collapsed, *y;
    bf16* wide;
    u8* codes;
    float *scales, *mix, *partial;
};

// What the blocks of a cluster send each other.
constexpr int LETTER = 4;                                         // parts
constexpr int LETTERS_EACH = (PARTS_EACH + LETTER - 1) / LETTER;  // of a block, for a sum
template <int Rows>
struct Mail {
    Inbox first, second;  // of step 1; of step 2
    alignas(16) float sums[Rows + 1][CLUSTERED ? CLUSTER : 1][LETTERS_EACH * LETTER];
    alignas(16) float columns[CLUSTERED ? NORM_WARPS_EACH : 1][PER_THREAD][STREAMS][32];
    alignas(16) float y[GROUPS_EACH][FP8_GROUP];
    float squares[NORM_WARPS];
    // Of the block's own.
    alignas(16) float fresh[LETTERS_EACH * LETTER][STEP];
    alignas(16) float collapsed[NORM_WARPS_EACH][PER_THREAD][32];
};

template <int Rows>
__device__ __forceinline__ Mail<Rows>& mail_room() {
    extern __shared__ __align__(16) u8 mail_bytes[];
    return *reinterpret_cast<Mail<Rows>*>(mail_bytes);
}

// A block's place among those of its row, and then among those of steps 2 and 3.
struct Place {
    i64 row;
    int rank, team_rank;
};

// Whether a block takes sum c: all take those of the gates and the squares, one the others.
template <int Rows>
__device__ __forceinline__ bool takes(int rank, int c) {
    return c < STREAMS || c == Rows || c % TEAM == rank;
}

// Of D elements in chunks that are dealt to the blocks in turn, period by period, how many a block has.
__device__ __forceinline__ int dealt(int D, int chunk, int period, int rank) {
    if (D % period == 0) return D / TEAM;
    int count = 0;
    for (int first = 0; first < D; first += period)
        for (int d = first + rank * chunk; d < min(D, first + period); d += TEAM * chunk)
            count += min(chunk, D - d);
    return count;
}

// Bytes that come for step 2, and for step 3.
template <int Rows>
__device__ __forceinline__ void open_inboxes(Mail<Rows>& mail, int rank, int D) {
    int sums = 0;
#pragma unroll
    for (int c = 0; c <= Rows; ++c) sums += takes<Rows>(rank, c);
    const int columns = dealt(D, 32, NORM_THREADS, rank);
    open_inbox(mail.first, 4 * (LETTER * LETTERS_EACH * CLUSTER * sums + STREAMS * columns));
    open_inbox(mail.second, 4 * (NORM_WARPS + dealt(D, FP8_GROUP, TEAM * FP8_GROUP, rank)));
}

// The walk of chosen experts' FP4 rows past FP8 rows of x; common/fp4.cuh says in which order sums are
// taken.
//
// A warp has a part of K and every SETS-th slot. What it multiplies comes in pieces: two tiles of eight
// rows in a chunk. RING pieces of a warp are on their way into shared memory at a time, so that they
// cost no registers and a block fits beside one of the kernel before or behind. A lane reads back the
// codes that it copied itself, and the warp shares the scales, so no barrier is needed. A place is
// filled again as soon as its piece is in registers.
//
// Build constants: PARTS, SETS, TILES (2 or 4), SLOTS (of a walk), X_ROWS (of a walk: 1, or SLOTS),
// RING, and SM_THREADS, as many as shall find room on a multiprocessor.
#pragma once

constexpr int WARPS = PARTS * SETS;
constexpr int THREADS = 32 * WARPS;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr int ROOM = 512;  // 64 registers suffice on Hopper alone
#else
constexpr int ROOM = SM_THREADS;
#endif
constexpr int MIN_BLOCKS = ROOM / THREADS < 16 ? ROOM / THREADS : 16;
constexpr int ROWS = 8 * TILES;
constexpr int PAIRS = TILES / 2;

static_assert(TILES == 2 || TILES == 4, "a product takes two tiles of eight rows");
static_assert(WARPS <= 16, "a block leaves half of an SM's threads to its neighbours");
static_assert(SETS == 1 || SETS == 2, "slots are dealt to sets by one bit");
static_assert(RING >= 1, "a piece needs a place");

#include "common/fp4.cuh"

// The matrices of all experts.
struct Slab {
    const u8 *codes, *scales;
};

// The places of a warp's pieces, taken in turn: a piece goes where the one RING before it was.
template <class Scales>
struct Ring {
    static constexpr int SCALES = 16 * Scales::GROUPS;  // of a piece, bytes
    static constexpr int BYTES = RING * (32 * THREADS + WARPS * SCALES);
    uint4* codes;  // this thread's first place
    u8* scales;    // this warp's
    int stage;

    static __device__ __forceinline__ Ring of_thread(void* room) {
        u8* const scales = (u8*)room + RING * 32 * THREADS;
        return {(uint4*)room + threadIdx.x, scales + threadIdx.x / 32 * SCALES, 0};
    }
    __device__ __forceinline__ uint4* place(int tile) const {
        return codes + (2 * stage + tile) * THREADS;
    }
    __device__ __forceinline__ u8* scales_of(int row) const {
        return scales + stage * (WARPS * SCALES) + row * Scales::GROUPS;
    }
    // Waits for the piece whose turn it is, one group of copies a piece.
    static __device__ __forceinline__ void wait() {
        cp_async_wait<RING - 1>();
        __syncwarp();  // other lanes' scales
    }
    __device__ __forceinline__ void next() { stage = stage + 1 == RING ? 0 : stage + 1; }
};

__device__ __forceinline__ bool is_expert(int id, int E) { return id >= 0 && id < E; }

// A slot's expert, or -1, in lane `slot`. ids: null where there is only one matrix.
__device__ __forceinline__ int id_of_lane(const i32* ids, int slots, int E) {
    const int lane = threadIdx.x % 32;
    if (lane >= slots) return -1;
    const int id = ids == nullptr ? 0 : ids[lane];
    return is_expert(id, E) ? id : -1;
}

// Where this lane's rows of the block begin, in units of 16 bytes of codes; K / 32 of them a row.
struct Rows {
    u32 codes[TILES];   // of row lane / 4 of every tile
    u32 scales[PAIRS];  // of the row of a pair whose scales it copies, lanes 0 to 15

    // row_of(i): the matrix's row that is row i of the block.
    template <class RowOf>
    static __device__ __forceinline__ Rows of_lane(int K, const RowOf& row_of) {
        const int lane = threadIdx.x % 32;
        Rows rows;
#pragma unroll
        for (int t = 0; t < TILES; ++t) rows.codes[t] = (u32)row_of(8 * t + lane / 4) * (K / 32);
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) rows.scales[p] = (u32)row_of(16 * p + lane % 16) * (K / 32);
        return rows;
    }
};

// The pieces that a warp copies: those of its part, slot after slot of its set that has an expert. A
// pair of tiles has a slab of its own, or all have the same.
template <class Scales, int Slabs>
struct Walk {
    const Slab (&slab)[Slabs];
    const Rows& rows;
    int N, K;
    int id;              // as id_of_lane says
    u32 valid, waiting;  // slots of the set, a bit each: with an expert; not begun
    int left;            // chunks to come of the slot that was begun last
    int pieces;          // to come in all
    u32 at;              // of its next chunk in the slab, in units of 16 bytes

    __device__ __forceinline__ void begin(int own_id) {
        const int part = threadIdx.x / 32 % PARTS, set = threadIdx.x / (32 * PARTS);
        id = own_id;
        valid = __ballot_sync(FULL_WARP, id >= 0) & (SETS == 1 ? ~0u : 0x55555555u << set);
        waiting = valid;
        left = 0;
        pieces = __popc(valid) * ((K / CHUNK - part + PARTS - 1) / PARTS) * PAIRS;
    }
    __device__ __forceinline__ void begin_slot() {
        const int part = threadIdx.x / 32 % PARTS;
        const u32 expert = __shfl_sync(FULL_WARP, id, __ffs(waiting) - 1);
        waiting &= waiting - 1;
        left = (K / CHUNK - part + PARTS - 1) / PARTS;
        at = expert * (u32)N * (u32)(K / 32) + part * (CHUNK / 32);
    }
    // Asks for the next piece, which is one of that pair.
    template <int Pair>
    __device__ __forceinline__ void fetch(const Ring<Scales>& ring) {
        if (Pair == 0 && left == 0) begin_slot();
        const int lane = threadIdx.x % 32;
        const Slab& own = slab[Pair % Slabs];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            cp_async16(ring.place(i),
                       own.codes + (u64)(at + rows.codes[2 * Pair + i] + lane % 4) * 16);
        // 16 bytes of codes are 32 elements.
        if (lane < 16)
            cp_async<Scales::GROUPS>(
                ring.scales_of(lane),
                own.scales + (u64)(at + rows.scales[Pair]) * (Scales::GROUPS / 4));
        if (Pair == PAIRS - 1) {
            at += PARTS * (CHUNK / 32);
            --left;
        }
        --pieces;
    }
    // Into the place that is free now, when a piece of pair Consumed was taken from it.
    template <int Consumed>
    __device__ __forceinline__ void refill(const Ring<Scales>& ring) {
        if (pieces > 0) fetch<(Consumed + RING) % PAIRS>(ring);
        cp_async_commit();
    }
};

// Asks for a walk's first pieces, for the places of a new ring from `first` on.
template <class Pieces, class Scales>
__device__ __forceinline__ void fill(Pieces& walk, Ring<Scales>& ring, int first) {
#pragma unroll
    for (int i = 0; i < RING; ++i) {
        if (i < first) continue;
        ring.stage = i;
        if (walk.pieces > 0 && i % PAIRS == 0) walk.template fetch<0>(ring);
        if (walk.pieces > 0 && i % PAIRS != 0) walk.template fetch<PAIRS - 1>(ring);
        cp_async_commit();
    }
    ring.stage = 0;
}

// Every part's sums of every slot, rows of the block; slots without an expert are left out.
__shared__ float partial[SLOTS][PARTS][ROWS];

// Two tiles of a chunk, this lane's share: its columns' sums, raw. x: the chunk's, of this quarter.
template <class Scales>
__device__ __forceinline__ void multiply(uint4 upper, uint4 lower, const u32* x, float (&sum)[4]) {
    // The column of x that this lane fills, and which of its words are in it: a group of 32 is all of
    // a quarter's, one of 16 half of them.
    constexpr int SPLIT = Scales::GROUPS / 4;
    const int column = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
    const bool fills = column / SPLIT == quarter;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        uint4 b = make_uint4(0, 0, 0, 0);
        if (fills && (SPLIT == 1 || i / 2 == column % SPLIT)) b = load16(x + 4 * i);
        u32 high[4], low[4];
        decode(word_of(upper, i), high);
        decode(word_of(lower, i), low);
        mma_f16_16816(sum, {high[0], low[0], high[1], low[1]}, {b.x, b.y});
        mma_f16_16816(sum, {high[2], low[2], high[3], low[3]}, {b.z, b.w});
    }
}

// The next piece of the ring, on to its columns' sums.
template <int Pair, class Scales, int Slabs>
__device__ __forceinline__ void take_piece(Walk<Scales, Slabs>& walk, Ring<Scales>& ring,
                                           const u32* x, float x_scale, float (&total)[4]) {
    const int row = threadIdx.x % 32 / 4, group = 2 * (threadIdx.x % (Scales::GROUPS / 2));
    ring.wait();
    const uint4 upper = *ring.place(0), lower = *ring.place(1);
    const u16 scales[2] = {*(const u16*)(ring.scales_of(row) + group),
                           *(const u16*)(ring.scales_of(row + 8) + group)};
    __syncwarp();  // all have their scales
    walk.template refill<Pair>(ring);
    ring.next();
    float sum[4] = {};
    multiply<Scales>(upper, lower, x, sum);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        total[i] = fmaf(sum[i] * x_scale, Scales::value((u8)(scales[i / 2] >> 8 * (i % 2))),
                        total[i]);
}

// One warp: its part of its slots, into `partial`, from a ring that the walk has filled.
template <class Scales, int Slabs>
__device__ __forceinline__ void finish_walk(Walk<Scales, Slabs>& walk, Ring<Scales>& ring,
                                            const Inputs& in) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS;
    const int quarter = lane % 4, K = walk.K;
    for (u32 slots = walk.valid; slots != 0; slots &= slots - 1) {
        const int slot = __ffs(slots) - 1, x_row = X_ROWS > 1 ? slot : 0;
        float total[PAIRS][4] = {};
#pragma unroll 1
        for (int at = part; at < K / CHUNK; at += PARTS) {
            const u32* const x = in.pairs + x_row * (K / 2) + at * (CHUNK / 2) + 16 * quarter;
            const float x_scale = in.scales[x_row * (K / CHUNK) + at];
            take_piece<0>(walk, ring, x, x_scale, total[0]);
            if constexpr (PAIRS == 2) take_piece<1>(walk, ring, x, x_scale, total[PAIRS - 1]);
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            float value = total[i / 2][2 * (i % 2)] + total[i / 2][2 * (i % 2) + 1];
            value += __shfl_xor_sync(FULL_WARP, value, 1);
            value += __shfl_xor_sync(FULL_WARP, value, 2);
            if (quarter == 0) partial[slot][part][8 * i + lane / 4] = value;
        }
    }
}

// A row of the block under a slot's expert: its parts in ascending order.
__device__ __forceinline__ float whole_sum(int slot, int row) {
    float sum = partial[slot][0][row];
#pragma unroll
    for (int part = 1; part < PARTS; ++part) sum += partial[slot][part][row];
    return sum;
}

// The walk of chosen experts' FP4 rows past FP8 rows of x; common/fp4.cuh says in which order sums are
// taken.
//
// A warp has a part of K and every SETS-th slot. What it multiplies comes in pieces, four loads of 16
// bytes a lane: a chunk of four tiles of eight rows, or two chunks of two. RING pieces of a warp are on
// their way into shared memory at a time, where only the thread reads that had them copied: so a warp
// waits for its next piece alone. (Loads into registers would share one of the six counters by which a
// warp waits for loads: it would wait for all pieces on their way.) Whatever else a piece needs waits
// there, too: rows of x, and the scales of all slots, which the block copies at once. Loops are unrolled
// by RING, so that the build knows all offsets.
//
// A piece that is asked for is a group of copies, an empty one behind the last. When one is multiplied,
// RING - 1 groups at least have been committed behind it.
//
// Build constants: K_CHUNKS (of K), PARTS, SETS, TILES (2 or 4), SLOTS (of a walk), X_ROWS (of a walk: 1,
// or SLOTS), RING.
#pragma once

constexpr int WARPS = PARTS * SETS;
constexpr int THREADS = 32 * WARPS;
// Blocks with 128 registers a thread.
constexpr int MIN_BLOCKS = 512 / THREADS;
constexpr int ROWS = 8 * TILES;
constexpr int PAIRS = TILES / 2;
constexpr int PIECE_CHUNKS = 2 / PAIRS;
constexpr int LOADS = 4;

static_assert(TILES == 2 || TILES == 4, "a product takes two tiles of eight rows");
static_assert(WARPS <= 16, "there are 128 registers a thread for 16 warps");
static_assert(SETS == 1 || SETS == 2, "slots are dealt to sets by one bit");
static_assert(PARTS == 8 || K_CHUNKS == PARTS, "a part of K has one chunk or every eighth");
static_assert(RING >= 1, "a piece needs a place");

#include "common/fp4.cuh"

// The matrices of all experts.
struct Slab {
    const u8 *codes, *scales;
};

// A warp's pieces on their way, this thread's share: loads of a place lie THREADS apart.
struct Ring {
    static constexpr int PLACE = LOADS * THREADS;  // in units of 16 bytes
    static constexpr int BYTES = RING * PLACE * 16;
    uint4* own;

    static __device__ __forceinline__ Ring at(u8* room) { return {(uint4*)room + threadIdx.x}; }
    __device__ __forceinline__ uint4* operator[](int place) const { return own + place * PLACE; }
};

// This thread's share of a piece.
struct Piece {
    uint4 load[LOADS];

    // Of the one that was asked for first, which has one chunk at least.
    static __device__ __forceinline__ Piece next_of(const uint4* place, int chunks) {
        cp_async_wait<RING - 1>();
        Piece piece = {};
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int chunk = j / 2 % PIECE_CHUNKS;
            if (chunk == 0 || chunks > chunk) piece.load[j] = load16(place + j * THREADS);
        }
        return piece;
    }
};

// What a lane multiplies that has no x of its own. At such an address that no lane with x has the same
// banks.
__shared__ __align__(128) u32 zeros[48];
__device__ __forceinline__ const u32* no_x() { return zeros + 8; }
__device__ __forceinline__ void clear_zeros() {
#pragma unroll
    for (int first = 0; first < 48; first += THREADS)
        if (first + threadIdx.x < 48) zeros[first + threadIdx.x] = 0;
}

__device__ __forceinline__ int part_of_warp() { return threadIdx.x / 32 % PARTS; }
// Chunks of a part.
__device__ __forceinline__ int chunks_of(int part) {
    return K_CHUNKS % PARTS == 0 ? K_CHUNKS / PARTS : (K_CHUNKS - part + PARTS - 1) / PARTS;
}

__device__ __forceinline__ bool is_expert(int id, int E) { return id >= 0 && id < E; }

// A slot's expert, or -1, in lane `slot`. ids: null where there is only one matrix.
__device__ __forceinline__ int id_of_lane(const i32* ids, int slots, int E) {
    const int lane = threadIdx.x % 32;
    if (lane >= slots) return -1;
    const int id = ids == nullptr ? 0 : ids[lane];
    return is_expert(id, E) ? id : -1;
}

// What is asked for: pieces of a matrix at equal distances.
struct Stream {
    const u8* from[LOADS];  // where `at` is 0
    u32 at, step;           // of the next piece, and to the one behind it, in units of 16 bytes
    int left;               // chunks of the matrix to come; two a piece, where a piece has two

    __device__ __forceinline__ void copy(uint4* place) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j)
            if (left > j / 2 % PIECE_CHUNKS)
                cp_async16(place + j * THREADS, from[j] + (u64)at * 16);
        at += step;
        left -= PIECE_CHUNKS;
    }
};

// Asks for a walk's next piece; behind the last one for nothing.
template <class Walk>
__device__ __forceinline__ void ask(Walk& walk, Stream& stream, uint4* place) {
    if (stream.left <= 0) walk.next(stream);
    stream.copy(place);
    cp_async_commit();
}

// Where this lane's rows of the block begin, row lane / 4 of every tile, in units of 16 bytes of FP4
// codes. row_of(i): the matrix's row that is row i of the block.
struct Rows {
    u32 of_tile[TILES];

    template <class RowOf>
    static __device__ __forceinline__ Rows of_lane(const RowOf& row_of) {
        Rows rows;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
            rows.of_tile[t] = (u32)row_of(8 * t + (int)threadIdx.x % 32 / 4) * (K / LANE_CODES);
        return rows;
    }
};

// The slab that the rows of tile 0 or 1 of a pair are of: where there are two, the first half of the tiles
// has the first. (An index would put slabs into memory.)
template <int Slabs, class Matrix>
__device__ __forceinline__ const Matrix& slab_of(const Matrix (&slab)[Slabs], int pair, int tile) {
    return Slabs == 2 && (PAIRS == 1 ? tile : pair) ? slab[Slabs - 1] : slab[0];
}

// The slots of a warp's set that have an expert, one after the other, and of each the warp's part.
template <int Slabs>
struct Walk {
    const Slab (&slab)[Slabs];
    const Rows& rows;
    u32 matrix;          // where that of slot `lane` begins, in units of 16 bytes
    u32 valid, waiting;  // slots of the set, a bit each: with an expert; not asked for yet

    // Nothing to ask for yet.
    __device__ __forceinline__ void begin_empty() { matrix = valid = waiting = 0; }
    // id: as id_of_lane says.
    __device__ __forceinline__ void begin(int id, int N) {
        const int set = threadIdx.x / (32 * PARTS);
        valid = __ballot_sync(FULL_WARP, id >= 0) & (SETS == 1 ? ~0u : 0x55555555u << set);
        waiting = valid;
        matrix = (u32)id * (u32)N * (K / LANE_CODES) + part_of_warp() * (CHUNK / LANE_CODES);
    }
    // Turns a stream to these slabs.
    __device__ __forceinline__ void enter(Stream& stream) const {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int pair = j / 2 % PAIRS, chunk = j / 2 / PAIRS;
            stream.from[j] = slab_of(slab, pair, j % 2).codes +
                             (u64)(rows.of_tile[2 * pair + j % 2] + threadIdx.x % 4) * 16 +
                             chunk * (PARTS * CHUNK / 2);
        }
        stream.step = PIECE_CHUNKS * PARTS * (CHUNK / LANE_CODES);
        stream.left = 0;
    }
    __device__ __forceinline__ void next(Stream& stream) {
        if (waiting == 0) return;
        stream.at = __shfl_sync(FULL_WARP, matrix, __ffs(waiting) - 1);
        stream.left = chunks_of(part_of_warp());
        waiting &= waiting - 1;
    }
};

// Scales of a walk's slots in shared memory, behind one another: slots, pieces of a row, rows. A row
// more than there are keeps pieces of a row, which neighbours copy, in different banks.
template <class Scales>
struct ScaleRoom {
    static constexpr int ROW = K_CHUNKS * Scales::GROUPS;
    static constexpr int COPY = ROW % 16 == 0 ? 16 : Scales::GROUPS;  // bytes
    static constexpr int COPIES = ROW / COPY;                         // of a row
    static constexpr int STRIDE = (ROWS + 1) * COPY;                  // of pieces
    static constexpr int SLOT = COPIES * STRIDE;
    static constexpr int BYTES = (SLOTS * SLOT + 127) / 128 * 128;
    // From a chunk to the next of its part.
    static constexpr int STEP = PARTS * Scales::GROUPS / COPY * STRIDE;
    static_assert(K_CHUNKS == PARTS || PARTS * Scales::GROUPS % COPY == 0, "a step is whole");

    u8* room;

    static __device__ __forceinline__ int of_chunk(int chunk) {
        return chunk * Scales::GROUPS / COPY * STRIDE + chunk * Scales::GROUPS % COPY;
    }
    // Starts the copies; a commit, a wait and a barrier follow. row_of: as in Rows.
    template <int Slabs, class RowOf>
    __device__ __forceinline__ void copy(const Slab (&slab)[Slabs], int id, int slots, int N,
                                         const RowOf& row_of) const {
        constexpr int EACH = ROWS * COPIES;  // of a slot
        // Where a step of the block is whole slots, a thread has the same row and piece in all.
        constexpr bool WHOLE = THREADS % EACH == 0;
        const u8 *const upper = slab[0].scales, *const lower = slab[Slabs - 1].scales;
#pragma unroll(WHOLE ? (SLOTS * EACH + THREADS - 1) / THREADS : 1)
        for (int first = 0; first < SLOTS * EACH; first += THREADS) {
            const int begin = threadIdx.x + (WHOLE ? 0 : first), i = begin % EACH;
            const int slot = begin / EACH + (WHOLE ? first / EACH : 0);
            const int piece = i % COPIES, row = i / COPIES;
            const int own_id = __shfl_sync(FULL_WARP, id, slot);
            if (own_id < 0 || slot >= slots) continue;
            const u8* const own = Slabs == 2 && row >= ROWS / 2 ? lower : upper;
            const u8* const from = own + (u64)((u32)own_id * (u32)N) * ROW +
                                   (u64)((u32)row_of(row) * ROW + piece * COPY);
            u8* const to = room + slot * SLOT + piece * STRIDE + row * COPY;
            if constexpr (COPY == 16)
                cp_async16(to, from);
            else
                cp_async<COPY>(to, from);
        }
    }
};

// Asks for a walk's first pieces, from place FIRST on.
template <int FIRST, int Slabs>
__device__ __forceinline__ void fill(Walk<Slabs>& walk, Stream& stream, const Ring& ring) {
    walk.enter(stream);
#pragma unroll
    for (int i = 0; i < RING; ++i) ask(walk, stream, ring[(FIRST + i) % RING]);
}

// Every part's sums of every slot, rows of the block; slots without an expert are left out.
__shared__ float partial[SLOTS][PARTS][ROWS];

// A row of x as a lane reads it, chunk after chunk: its columns' quarter, or zeros. A group of 32 is
// all of a quarter's words, one of 16 half of them.
template <class Scales>
struct LaneX {
    static constexpr int SPLIT = Scales::GROUPS / 4;
    const u32* at[SPLIT];
    int step[SPLIT];
    const float* scale;

    static __device__ __forceinline__ LaneX of(const Inputs& in, int row, int part) {
        const int column = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
        const u32* const own = in.pairs + row * (K / 2) + part * (CHUNK / 2) + 16 * quarter;
        LaneX x;
#pragma unroll
        for (int i = 0; i < SPLIT; ++i) {
            const bool fills = column / SPLIT == quarter && column % SPLIT == i;
            x.at[i] = fills ? own : no_x();
            x.step[i] = fills ? PARTS * CHUNK / 2 : 0;
        }
        x.scale = in.scales + row * K_CHUNKS + part;
        return x;
    }
    __device__ __forceinline__ uint4 word(int i) const {
        return load16(at[i * SPLIT / WORDS] + 4 * i);
    }
    __device__ __forceinline__ void next() {
#pragma unroll
        for (int i = 0; i < SPLIT; ++i) at[i] += step[i];
        scale += PARTS;
    }
};

// One chunk of all tiles, on to their columns' sums. scales: of the chunk, where this lane's begin.
template <class Scales>
__device__ __forceinline__ void multiply(const uint4* codes, const LaneX<Scales>& x,
                                         const u8* scales, float (&total)[TILES][2]) {
    constexpr int TILE = 8 * ScaleRoom<Scales>::COPY;
    float sum[PAIRS][4] = {};
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        const uint4 b = x.word(i);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            u32 high[4], low[4];
            decode(word_of(codes[2 * pair], i), high);
            decode(word_of(codes[2 * pair + 1], i), low);
            mma_f16_16816(sum[pair], {high[0], low[0], high[1], low[1]}, {b.x, b.y});
            mma_f16_16816(sum[pair], {high[2], low[2], high[3], low[3]}, {b.z, b.w});
        }
    }
    const float x_scale = *x.scale;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
        const u32 two = Scales::pair(*(const u16*)(scales + t * TILE));
        const float* const raw = sum[t / 2] + 2 * (t % 2);
        total[t][0] = fmaf(raw[0] * x_scale, __uint_as_float(two << 16), total[t][0]);
        total[t][1] = fmaf(raw[1] * x_scale, __uint_as_float(two & 0xffff0000u), total[t][1]);
    }
}

// One warp: its part of its slots, into `partial`. The stream has asked for the first RING pieces, from
// place FIRST on.
template <int FIRST, class Scales, int Slabs>
__device__ __forceinline__ void finish_walk(Walk<Slabs>& walk, Stream& stream, const Ring& ring,
                                            const Inputs& in, const ScaleRoom<Scales>& scales) {
    const int lane = threadIdx.x % 32, quarter = lane % 4, part = part_of_warp();
    u32 slots = walk.valid;
    if (slots == 0) return;
    // This lane's first rows, and the two groups that its columns are.
    const u8* const own_scales = scales.room + ScaleRoom<Scales>::of_chunk(part) +
                                 lane / 4 * ScaleRoom<Scales>::COPY +
                                 2 * (quarter % (Scales::GROUPS / 2));
    float total[TILES][2] = {};
    int slot = __ffs(slots) - 1, left = chunks_of(part);
    LaneX<Scales> x = LaneX<Scales>::of(in, X_ROWS > 1 ? slot : 0, part);
    const u8* scale = own_scales + slot * ScaleRoom<Scales>::SLOT;
    // Returns whether it was the last.
    const auto take = [&](uint4* place) {
        const Piece piece = Piece::next_of(place, left);
        ask(walk, stream, place);
#pragma unroll
        for (int c = 0; c < PIECE_CHUNKS; ++c) {
            if (c > 0 && left <= c) break;
            multiply(piece.load + 2 * c, x, scale, total);
            x.next();
            scale += ScaleRoom<Scales>::STEP;
        }
        left -= PIECE_CHUNKS;
        if (left > 0) return false;
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            float (&own)[2] = total[t];
            float value = own[0] + own[1];
            value += __shfl_xor_sync(FULL_WARP, value, 1);
            value += __shfl_xor_sync(FULL_WARP, value, 2);
            if (quarter == 0) partial[slot][part][8 * t + lane / 4] = value;
            own[0] = own[1] = 0.0f;
        }
        slots &= slots - 1;
        if (slots == 0) return true;
        slot = __ffs(slots) - 1, left = chunks_of(part);
        x = LaneX<Scales>::of(in, X_ROWS > 1 ? slot : 0, part);
        scale = own_scales + slot * ScaleRoom<Scales>::SLOT;
        return false;
    };
    for (bool last = false; !last;)
#pragma unroll
        for (int i = 0; i < RING && !last; ++i) last = take(ring[(FIRST + i) % RING]);
}

// A row of the block under a slot's expert: its parts in ascending order.
__device__ __forceinline__ float whole_sum(int slot, int row) {
    float sum = partial[slot][0][row];
#pragma unroll
    for (int part = 1; part < PARTS; ++part) sum += partial[slot][part][row];
    return sum;
}

// The walk of chosen experts' FP4 rows past FP8 rows of x, for kernels that must give the same bytes.
//
// On tensor cores: weights are the tall operand of m16n8k16, and its eight columns, of which one row of
// x needs only one, serve to keep apart the groups that have their own weight scale: in 128 elements
// of K each group, 4 of 32 or 8 of 16, has a column of x of its own that is zero elsewhere. So raw
// codes are multiplied by raw codes, exactly, and a group is scaled when it is whole.
//
// Order of the sum. K is cut into chunks of 128. Lane quarter q (lane % 4) has elements 32 q .. 32 q +
// 31 of a chunk in one load; product j of eight takes elements 4 j .. 4 j + 3 of every quarter, and the
// products of a group are chained from 0. A product of e2m1 and e4m3 has 6 significant bits, so nothing
// is rounded while a group's products span less than 24 bits. The group's sum times the activation's
// scale, a power of two and so exact, times the weight's scale is fused onto the sum of its column,
// chunks ascending: chunk c belongs to part c % PARTS. The columns of a part are added as 0 + 1, 2 + 3,
// 4 + 5, 6 + 7, and their sums by the xor butterfly; then the parts in ascending order; scale2, any
// float, is applied last. The order depends on K alone: a row of x, or a slot, gives the same bytes
// alone, in any batch, and through every one of these kernels.
//
// A code's bits moved into place are a bf16 of value * 2^-126, as in common/convert.cuh, and x carries
// 2^118: both exact, and their products are ordinary numbers.
//
// Build constants: PARTS, SETS, TILES (2 or 4), SLOTS (of a walk), X_ROWS (of a walk: 1, or SLOTS);
// LESS_DEPTH, chunks fewer on their way, for kernels with more to keep in registers.
#pragma once

#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

#ifndef LESS_DEPTH
#define LESS_DEPTH 0
#endif

constexpr int CHUNK = 128;
constexpr int LANE_CODES = 32;
constexpr int PRODUCTS = LANE_CODES / 4;
constexpr int ROWS = 8 * TILES;
constexpr int PAIRS = TILES / 2;
constexpr int THREADS = 32 * PARTS * SETS;
constexpr int MIN_BLOCKS = THREADS > 256 ? 1 : 512 / THREADS;  // on an SM; no build may spill

static_assert(TILES == 2 || TILES == 4, "a product takes two tiles of eight rows");
static_assert(PARTS * SETS <= 16, "sixteen warps of 128 registers fill an SM");

struct MxScales {
    static constexpr int GROUPS = 4;      // of a chunk, and columns of x
    static constexpr int CODE_BYTES = 4;  // log2 of those that share a scale
    static constexpr int DEPTH = (TILES == 4 ? 3 : 4) - LESS_DEPTH;  // as far as registers go
    // e8m0_to_f32 without branches: byte 0 is a subnormal, and infinity, as which 255 reads, times 0
    // is NaN.
    static __device__ __forceinline__ float value(u8 bits) {
        const float power = __uint_as_float(max((u32)bits << 23, 0x00400000u));
        return fmaf(power, 0.0f, power);
    }
};
struct NvScales {
    static constexpr int GROUPS = 8;
    static constexpr int CODE_BYTES = 3;
    static constexpr int DEPTH = (TILES == 4 ? 2 : 3) - LESS_DEPTH;
    static __device__ __forceinline__ float value(u8 bits) { return e4m3_to_f32(bits); }
};

// The matrices of all experts.
struct Slab {
    const u8 *codes, *scales;
};

struct Chunk {
    uint4 codes[TILES];
    u16 scales[TILES];  // of the two groups whose sums this lane holds
};

// The eight codes of a word as four pairs, in units of 2^126: elements 0 and 2, 1 and 3, 4 and 6, 5 and 7.
__device__ __forceinline__ void decode(u32 word, u32 (&pairs)[4]) {
    const u32 even = word << 4;  // the lower code of a byte in its upper half, where its sign is
    pairs[0] = permute_bytes(even, 0x9180u) << 2 & 0x81c081c0u;
    pairs[1] = permute_bytes(word, 0x9180u) << 2 & 0x81c081c0u;
    pairs[2] = permute_bytes(even, 0xb3a2u) << 2 & 0x81c081c0u;
    pairs[3] = permute_bytes(word, 0xb3a2u) << 2 & 0x81c081c0u;
}

__device__ __forceinline__ u32 word_of(uint4 words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Rows of x in shared memory: bf16 of 2^118 times the codes, in the order of `decode`'s pairs, and
// scales times 2^8, which is what is left of the units in a product.
struct Inputs {
    u32* pairs;     // [X_ROWS][K / 2]
    float* scales;  // [X_ROWS][K / 128]
};

// Four codes, elements 4 i and on of the staged rows.
__device__ __forceinline__ void stage_word(const Inputs& in, int i, u32 codes) {
    // Bytes 0 and 2, 1 and 3 become neighbours.
    const u32 mixed = permute_bytes(codes, 0x3120u);
    // -0 as the third operand keeps the sign of a zero.
    in.pairs[2 * i] = fma_bf16x2(e4m3x2_to_bf16x2<0>(mixed), 0x7a807a80u, 0x80008000u);
    in.pairs[2 * i + 1] = fma_bf16x2(e4m3x2_to_bf16x2<2>(mixed), 0x7a807a80u, 0x80008000u);
}

// gap: words between rows and scales, for other use.
__device__ __forceinline__ Inputs stage(const u8* x, const float* x_scales, i64 first_row, int K,
                                        int gap = 0) {
    extern __shared__ __align__(16) u32 staged[];
    const Inputs in = {staged, (float*)(staged + X_ROWS * (K / 2) + gap)};
    const u8* codes = x + first_row * K;
    for (int i = threadIdx.x; i < X_ROWS * (K / 4); i += THREADS)
        stage_word(in, i, *(const u32*)(codes + 4 * i));
    for (int i = threadIdx.x; i < X_ROWS * (K / CHUNK); i += THREADS)
        in.scales[i] = x_scales[first_row * (K / CHUNK) + i] * 0x1p8f;
    return in;
}

__device__ __forceinline__ bool is_expert(const i32* ids, int slot, int E) {
    return ids == nullptr || (ids[slot] >= 0 && ids[slot] < E);
}

// The chunks that a warp loads: those of its part, slot after slot of its set that has an expert. A
// pair of tiles has a slab of its own, or all have the same.
template <class Scales, int Slabs>
struct Walk {
    const Slab (&slab)[Slabs];
    const i32* ids;
    int slots, E, N, K;
    int offset[TILES];  // bytes from an expert's codes to this lane's row
    int slot, left;     // chunks left in this slot
    const u8 *codes[Slabs], *scales[Slabs];

    __device__ __forceinline__ void start(int first_slot) {
        slot = first_slot;
        while (slot < slots && !is_expert(ids, slot, E)) slot += SETS;
        if (slot >= slots) return;
        const int part = threadIdx.x / 32 % PARTS, quarter = threadIdx.x % 4;
        left = (K / CHUNK - part + PARTS - 1) / PARTS;
        const i64 matrix = ids == nullptr ? 0 : (i64)ids[slot] * N * K / 2;
#pragma unroll
        for (int i = 0; i < Slabs; ++i) {
            codes[i] = slab[i].codes + matrix + part * (CHUNK / 2) + 16 * quarter;
            scales[i] = slab[i].scales + (matrix >> Scales::CODE_BYTES) + part * Scales::GROUPS +
                        2 * (quarter % (Scales::GROUPS / 2));
        }
    }
    __device__ __forceinline__ void load(Chunk& chunk, int pair) const {
#pragma unroll
        for (int t = 2 * pair; t < 2 * pair + 2; ++t) {
            chunk.codes[t] = load16_once(codes[pair % Slabs] + offset[t]);
            chunk.scales[t] = *(const u16*)(scales[pair % Slabs] +
                                            (offset[t] >> Scales::CODE_BYTES));
        }
    }
    __device__ __forceinline__ void advance() {
        if (--left == 0) return start(slot + SETS);
#pragma unroll
        for (int i = 0; i < Slabs; ++i) {
            codes[i] += PARTS * CHUNK / 2;
            scales[i] += PARTS * Scales::GROUPS;
        }
    }
};

// Every part's sums of every slot, rows of the block; slots without an expert are left out.
__shared__ float partial[SLOTS][PARTS][ROWS];

// One warp: its part of its slots, into `partial`. rows: of this lane in every tile. staged: called
// by all threads when the first weights are on their way; it fills the inputs, which a barrier
// follows, and returns them.
template <class Scales, int Slabs, class StageInputs>
__device__ __forceinline__ void walk_part(const Slab (&slab)[Slabs], const int (&rows)[TILES],
                                          const i32* ids, int slots, int E, int N, int K,
                                          const StageInputs& staged) {
    constexpr int DEPTH = Scales::DEPTH;
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS;
    const int set = threadIdx.x / (32 * PARTS);
    const int tile_row = lane / 4, quarter = lane % 4;
    const int chunks = (K / CHUNK - part + PARTS - 1) / PARTS;
    int steps = 0;
    for (int s = set; s < slots; s += SETS) steps += is_expert(ids, s, E) ? chunks : 0;
    Walk<Scales, Slabs> walk{slab, ids, slots, E, N, K};
#pragma unroll
    for (int t = 0; t < TILES; ++t) walk.offset[t] = rows[t] * (K / 2);
    walk.start(set);
    int slot = walk.slot;
    Chunk ring[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        if (d >= steps) break;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) walk.load(ring[d], pair);
        walk.advance();
    }
    const Inputs in = staged();
    __syncthreads();

    // The column of x that this lane fills, and which of its products are in it: a group of 32 is
    // all of a quarter's, one of 16 half of them.
    constexpr int SPLIT = Scales::GROUPS / 4;
    const bool fills = tile_row / SPLIT == quarter;
    float total[PAIRS][4] = {};
    int left = chunks;
    for (int first = 0; first < steps; first += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (first + d >= steps) break;
            Chunk& chunk = ring[d];
            const int at = part + (chunks - left) * PARTS, x_of = X_ROWS > 1 ? slot : 0;
            uint4 b[PRODUCTS / 2] = {};
            if (fills) {
                const u32* from = in.pairs + x_of * (K / 2) + at * (CHUNK / 2) + 16 * quarter;
#pragma unroll
                for (int i = 0; i < PRODUCTS / 2; ++i)
                    if (SPLIT == 1 || i / 2 == tile_row % SPLIT)
                        b[i] = *(const uint4*)(from + 4 * i);
            }
            const float x_scale = in.scales[x_of * (K / CHUNK) + at];
            const bool more = first + d + DEPTH < steps;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                float sum[4] = {};
#pragma unroll
                for (int i = 0; i < PRODUCTS / 2; ++i) {
                    u32 upper[4], lower[4];
                    decode(word_of(chunk.codes[2 * pair], i), upper);
                    decode(word_of(chunk.codes[2 * pair + 1], i), lower);
                    const u32 a0[4] = {upper[0], lower[0], upper[1], lower[1]};
                    const u32 a1[4] = {upper[2], lower[2], upper[3], lower[3]};
                    const u32 b0[2] = {b[i].x, b[i].y}, b1[2] = {b[i].z, b[i].w};
                    mma_bf16_16816(sum, a0, b0);
                    mma_bf16_16816(sum, a1, b1);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const u16 scales = chunk.scales[2 * pair + i / 2];
                    total[pair][i] = fmaf(sum[i] * x_scale,
                                          Scales::value((u8)(scales >> 8 * (i % 2))),
                                          total[pair][i]);
                }
                if (more) walk.load(chunk, pair);  // its place is free now
            }
            if (more) walk.advance();
            if (--left > 0) continue;
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float value = total[pair][2 * half] + total[pair][2 * half + 1];
                    value += __shfl_xor_sync(FULL_WARP, value, 1);
                    value += __shfl_xor_sync(FULL_WARP, value, 2);
                    if (quarter == 0) partial[slot][part][16 * pair + 8 * half + tile_row] = value;
                    total[pair][2 * half] = total[pair][2 * half + 1] = 0.0f;
                }
            left = chunks;
            do slot += SETS;
            while (slot < slots && !is_expert(ids, slot, E));
        }
    }
    __syncthreads();
}

// A row of the block under a slot's expert: its parts in ascending order.
__device__ __forceinline__ float whole_sum(int slot, int row) {
    float sum = partial[slot][0][row];
#pragma unroll
    for (int part = 1; part < PARTS; ++part) sum += partial[slot][part][row];
    return sum;
}

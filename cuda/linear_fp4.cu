// linear_fp4: y[s,n] = sum over k of w[n,k] * a[t,k], FP4 weights and FP8 activations
//
//   x e4m3 [T, K] and x_scales f32 [T, K/128]    a = x * its group's scale (from act_quant_fp8)
//   mx   codes e2m1x2 [N, K/2], scales ue8m0 [N, K/32]                      w = code * scale
//   nv   codes e2m1x2 [N, K/2], scales e4m3 [N, K/16], scale2 f32 [1]       w = code * scale * scale2
//
//   linear_fp4_mx, _nv            one matrix, any T: y f32 [T, N]
//   ..._selected                  codes, scales and scale2 of E experts in one slab [E, ...], ids i32
//        [S]: slot s takes matrix ids[s] and activation row s / group; y f32 [S, N]
//   ..._gate_up                   two slabs, gate and up: y f32 [S, N] = silu(gate) up weights[s],
//        both clamped by limit: the bytes of two ..._selected and of swiglu_weighted
//   ..._down                      y f32 [T, N]: the products of the A slots of a token, each with its
//        own row of x, summed as order [T, A] says, then plus shared [T, N]: the bytes of ..._selected
//        and of combine_shared
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
// A block has 8 * TILES rows of w and the slots of one row of x (for ..._down those of a token). A warp
// has a part of K and every SETS-th slot, and keeps DEPTH chunks on their way. Rows past the end repeat
// the last one and are not stored. ids live on the device, so they are checked here: an id that is no
// expert gives a row of NaN and reads no weights.
//
// x_scales are at least 2^-22, as the quantiser makes them. A NaN code or scale makes its row NaN.
//
// Build constants: PARTS, SETS, TILES (2 or 4), SLOTS (of a block), X_ROWS (of a block: 1, or SLOTS).
#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/mma.cuh"
#include "common/swiglu.cuh"

constexpr int CHUNK = 128;
constexpr int LANE_CODES = 32;
constexpr int PRODUCTS = LANE_CODES / 4;
constexpr int ROWS = 8 * TILES;
constexpr int PAIRS = TILES / 2;
constexpr int THREADS = 32 * PARTS * SETS;
constexpr int MIN_BLOCKS = THREADS > 256 ? 1 : 512 / THREADS;  // on an SM; no build may spill
constexpr u32 FULL_WARP = 0xffffffffu;

static_assert(TILES == 2 || TILES == 4, "a product takes two tiles of eight rows");
static_assert(PARTS * SETS <= 16, "sixteen warps of 128 registers fill an SM");

struct MxScales {
    static constexpr int GROUPS = 4;                  // of a chunk, and columns of x
    static constexpr int CODE_BYTES = 4;              // log2 of those that share a scale
    static constexpr int DEPTH = TILES == 4 ? 3 : 4;  // as far as registers go
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
    static constexpr int DEPTH = TILES == 4 ? 2 : 3;
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

__device__ __forceinline__ Inputs stage(const u8* x, const float* x_scales, i64 first_row, int K) {
    extern __shared__ __align__(16) u32 staged[];
    const Inputs in = {staged, (float*)(staged + X_ROWS * (K / 2))};
    const u8* codes = x + first_row * K;
    for (int i = threadIdx.x; i < X_ROWS * (K / 4); i += THREADS) {
        const u32 word = *(const u32*)(codes + 4 * i);
        // Bytes 0 and 2, 1 and 3 become neighbours.
        const u32 mixed = permute_bytes(word, 0x3120u);
        // -0 as the third operand keeps the sign of a zero.
        in.pairs[2 * i] = fma_bf16x2(e4m3x2_to_bf16x2<0>(mixed), 0x7a807a80u, 0x80008000u);
        in.pairs[2 * i + 1] = fma_bf16x2(e4m3x2_to_bf16x2<2>(mixed), 0x7a807a80u, 0x80008000u);
    }
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

// One warp: its part of its slots, into `partial`. rows: of this lane in every tile.
template <class Scales, int Slabs>
__device__ __forceinline__ void walk_part(const Slab (&slab)[Slabs], const int (&rows)[TILES],
                                          const i32* ids, int slots, int E, const u8* x,
                                          const float* x_scales, i64 x_row, int N, int K) {
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
    const Inputs in = stage(x, x_scales, x_row, K);
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

// Rows blockIdx.y * ROWS and on of one slab, for every tile.
__device__ __forceinline__ void rows_of_lane(int N, int (&rows)[TILES]) {
#pragma unroll
    for (int t = 0; t < TILES; ++t)
        rows[t] = min((int)(blockIdx.y * ROWS + 8 * t + threadIdx.x % 32 / 4), N - 1);
}

template <class Scales>
__device__ __forceinline__ void one_matrix(const u8* codes, const u8* scales, const float* scale2,
                                           const u8* x, const float* x_scales, float* y, int N,
                                           int K) {
    int rows[TILES];
    rows_of_lane(N, rows);
    const Slab slab[1] = {{codes, scales}};
    walk_part<Scales>(slab, rows, nullptr, 1, 1, x, x_scales, blockIdx.x, N, K);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int n = blockIdx.y * ROWS + i;
        const float sum = whole_sum(0, i);
        if (n < N) y[(i64)blockIdx.x * N + n] = scale2 == nullptr ? sum : sum * scale2[0];
    }
}

template <class Scales>
__device__ __forceinline__ void selected(const u8* codes, const u8* scales, const float* scale2,
                                         const i32* ids, const u8* x, const float* x_scales,
                                         float* y, int E, int N, int K, int group) {
    const int blocks = (group + SLOTS - 1) / SLOTS;  // that share a row of x
    const i64 t = blockIdx.x / blocks;
    const int first = blockIdx.x % blocks * SLOTS, slots = min(SLOTS, group - first);
    const i64 slot = t * group + first;
    int rows[TILES];
    rows_of_lane(N, rows);
    const Slab slab[1] = {{codes, scales}};
    walk_part<Scales>(slab, rows, ids + slot, slots, E, x, x_scales, t, N, K);
    for (int i = threadIdx.x; i < slots * ROWS; i += THREADS) {
        const int s = i / ROWS, n = blockIdx.y * ROWS + i % ROWS;
        if (n >= N) continue;
        float sum = NAN_F32;
        if (is_expert(ids + slot, s, E)) {
            sum = whole_sum(s, i % ROWS);
            if (scale2 != nullptr) sum *= scale2[ids[slot + s]];
        }
        y[(slot + s) * N + n] = sum;
    }
}

#if TILES == 2

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx(const u8* codes, const u8* scales, const u8* x, const float* x_scales, float* y,
                  i32 N, i32 K) {
    one_matrix<MxScales>(codes, scales, nullptr, x, x_scales, y, N, K);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv(const u8* codes, const u8* scales, const float* scale2, const u8* x,
                  const float* x_scales, float* y, i32 N, i32 K) {
    one_matrix<NvScales>(codes, scales, scale2, x, x_scales, y, N, K);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx_selected(const u8* codes, const u8* scales, const i32* ids, const u8* x,
                           const float* x_scales, float* y, i32 E, i32 N, i32 K, i32 group) {
    selected<MxScales>(codes, scales, nullptr, ids, x, x_scales, y, E, N, K, group);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_selected(const u8* codes, const u8* scales, const float* scale2, const i32* ids,
                           const u8* x, const float* x_scales, float* y, i32 E, i32 N, i32 K,
                           i32 group) {
    selected<NvScales>(codes, scales, scale2, ids, x, x_scales, y, E, N, K, group);
}

#endif

// ------------------------------------------------------------------------ the halves of an expert

template <class Scales>
__device__ __forceinline__ void down(const u8* codes, const u8* scales, const float* scale2,
                                     const i32* ids, const u8* x, const float* x_scales,
                                     const i32* order, const float* shared, float* y, int E, int N,
                                     int K) {
    const i64 t = blockIdx.x, slot = t * SLOTS;
    int rows[TILES];
    rows_of_lane(N, rows);
    const Slab slab[1] = {{codes, scales}};
    walk_part<Scales>(slab, rows, ids + slot, SLOTS, E, x, x_scales, slot, N, K);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int n = blockIdx.y * ROWS + i;
        if (n >= N) continue;
        float sum = 0.0f;
        for (int a = 0; a < SLOTS; ++a) {
            const i32 s = order[slot + a];
            float value = NAN_F32;
            if (s >= 0 && s < SLOTS && is_expert(ids + slot, s, E)) {
                value = whole_sum(s, i);
                if (scale2 != nullptr) value *= scale2[ids[slot + s]];
            }
            sum += value;
        }
        y[t * N + n] = sum + shared[t * N + n];
    }
}

#if TILES == 4  // a pair of tiles from the gate, a pair from up

template <class Scales>
__device__ __forceinline__ void gate_up(const Slab& gate, const Slab& up, const float* gate_scale2,
                                        const float* up_scale2, const i32* ids, const u8* x,
                                        const float* x_scales, const float* weights, float* y,
                                        int E, int N, int K, int group, float limit) {
    constexpr int HALF = ROWS / 2;
    const int blocks = (group + SLOTS - 1) / SLOTS;
    const i64 t = blockIdx.x / blocks;
    const int first = blockIdx.x % blocks * SLOTS, slots = min(SLOTS, group - first);
    const i64 slot = t * group + first;
    int rows[TILES];
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const int row = blockIdx.y * HALF + 8 * (i % PAIRS) + threadIdx.x % 32 / 4;
        rows[i] = min(row, N - 1);
    }
    const Slab slab[2] = {gate, up};
    walk_part<Scales>(slab, rows, ids + slot, slots, E, x, x_scales, t, N, K);
    for (int i = threadIdx.x; i < slots * HALF; i += THREADS) {
        const int s = i / HALF, n = blockIdx.y * HALF + i % HALF;
        if (n >= N) continue;
        float value[2] = {NAN_F32, NAN_F32};
        if (is_expert(ids + slot, s, E)) {
            value[0] = whole_sum(s, i % HALF);
            value[1] = whole_sum(s, HALF + i % HALF);
            if (gate_scale2 != nullptr) {
                value[0] *= gate_scale2[ids[slot + s]];
                value[1] *= up_scale2[ids[slot + s]];
            }
        }
        y[(slot + s) * N + n] = weighted_swiglu(value[0], value[1], limit, weights[slot + s]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx_gate_up(const u8* gate_codes, const u8* gate_scales, const u8* up_codes,
                          const u8* up_scales, const i32* ids, const u8* x, const float* x_scales,
                          const float* weights, float* y, i32 E, i32 N, i32 K, i32 group,
                          float limit) {
    gate_up<MxScales>({gate_codes, gate_scales}, {up_codes, up_scales}, nullptr, nullptr, ids, x,
                      x_scales, weights, y, E, N, K, group, limit);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_gate_up(const u8* gate_codes, const u8* gate_scales, const float* gate_scale2,
                          const u8* up_codes, const u8* up_scales, const float* up_scale2,
                          const i32* ids, const u8* x, const float* x_scales, const float* weights,
                          float* y, i32 E, i32 N, i32 K, i32 group, float limit) {
    gate_up<NvScales>({gate_codes, gate_scales}, {up_codes, up_scales}, gate_scale2, up_scale2, ids,
                      x, x_scales, weights, y, E, N, K, group, limit);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx_down(const u8* codes, const u8* scales, const i32* ids, const u8* x,
                       const float* x_scales, const i32* order, const float* shared, float* y,
                       i32 E, i32 N, i32 K) {
    down<MxScales>(codes, scales, nullptr, ids, x, x_scales, order, shared, y, E, N, K);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_down(const u8* codes, const u8* scales, const float* scale2, const i32* ids,
                       const u8* x, const float* x_scales, const i32* order, const float* shared,
                       float* y, i32 E, i32 N, i32 K) {
    down<NvScales>(codes, scales, scale2, ids, x, x_scales, order, shared, y, E, N, K);
}

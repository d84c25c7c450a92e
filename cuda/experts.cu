// experts: the two halves of the experts of a few tokens, routed ones and the shared one together
//
//   ..._gate_up   y f32 [T, A, N] = silu(gate) up weights[t,a] under expert ids[t,a], from x e4m3 [T, K]
//                 and its scales: the bytes of linear_fp4_..._gate_up
//                 shared_y bf16 [T, N] = silu(gate) up under the shared expert, from wide_x bf16 [T, K]:
//                 the bytes of two linear_fp8, swiglu and cast_bf16
//   ..._down      y f32 [T, N]: the routed products of hidden f32 [T, A, K] under ids, summed as order
//                 says, then the product of shared_x bf16 [T, K]: the bytes of act_quant_fp8,
//                 linear_fp4_..._down and linear_fp8
//
//   mx   codes e2m1x2 [E, N, K/2], scales ue8m0 [E, N, K/32]
//   nv   codes e2m1x2 [E, N, K/2], scales e4m3 [E, N, K/16], scale2 f32 [E]
//   shared expert: codes e4m3 [N, K], scales f32 [ceil(N/128), ceil(K/128)]
//
// A block has ROWS rows of w (half of them gate, half up) for one token, tokens side by side so that
// those with the same expert share it through the L2 cache. The shared expert's codes are asked for
// before the block waits for the kernel before, because they depend on no routing; where registers
// allow it the first ones of the chosen experts before they are multiplied. ..._gate_up has the shared expert's rows
// for all tokens in the blocks of token 0; ..._down has them in every block, for the sum is there. A
// walk takes SLOTS experts.
// Routed sums are those of common/fp4.cuh. Shared sums are those of common/gemv.cuh: groups of 128 in
// two chunks, group j in part j % DENSE_PARTS, parts ascending; a warp has every WARPS-th part.
//
// ..._down takes hidden rows unrounded and puts each group of 128 on its FP8 grid on the way into
// shared memory. Every slot's sum is kept until the last one of its token is there, so that the order
// of the sum is that of the expert ids.
//
// An id that is no expert gives a row of NaN and reads no weights; an entry of order that is no slot
// makes its token NaN.
//
// Build constants: those of common/fp4.cuh, TOKENS (that a block has rows of the shared expert for: T,
// at most 8, or 1), SLOT_GROUPS (walks of a token), DENSE_PARTS, DENSE_STEPS (groups of the shared
// expert that a warp has, at most), DENSE_RING (that it has asked for at once).
// Registers of sixteen warps suffice for all chunks on Hopper alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900 && !defined(LESS_DEPTH)
#define LESS_DEPTH 1
#endif

#include "common/floats.cuh"
#include "common/fp4.cuh"
#include "common/fp8_groups.cuh"
#include "common/overlap.cuh"
#include "common/swiglu.cuh"

constexpr int WARPS = PARTS * SETS;
constexpr int DENSE_CHUNK = 64;
constexpr int DENSE_PRODUCTS = DENSE_CHUNK / 16;

static_assert(TOKENS >= 1 && TOKENS <= 8, "a product has eight columns, one a token");
static_assert(DENSE_RING == 1 || DENSE_RING == 2, "shared memory holds two groups at most");
static_assert(DENSE_PARTS <= 16, "more parts than the order of the shared expert's sum has");

// ------------------------------------------------------------------------ the shared expert

struct Dense {
    const u8* codes;
    const float* scales;
};

// Every part's sums of the block's rows, for every token.
__shared__ float dense_partial[DENSE_PARTS][ROWS][TOKENS];

// The groups of a warp: those of its parts, one part after the other.
struct DenseGroup {
    int part, group;
    __device__ __forceinline__ bool inside(int K) const {
        return part < DENSE_PARTS && group < K / CHUNK;
    }
    __device__ __forceinline__ void advance(int K) {
        group += DENSE_PARTS;
        if (WARPS >= DENSE_PARTS || group < K / CHUNK) return;
        part += WARPS;
        group = part;
    }
    // This lane's first column of 64.
    __device__ __forceinline__ int column(int half) const {
        return group * CHUNK + half * DENSE_CHUNK + threadIdx.x % 4 * 16;
    }
};

// A warp's way through its groups. Codes wait in shared memory, DENSE_RING groups of them, so that
// they cost no registers while the first routed weights are on their way too; a lane reads back only
// what it copied itself. `room` is its first place there.
template <int Slabs>
struct DenseWalk {
    const Dense (&slab)[Slabs];
    const bf16* x;  // [TOKENS, K]
    uint4* room;
    int K, row;  // the block's first row
    DenseGroup here;
    int slot;
    uint4 own[2][2];  // of the token's row, for each half of the group
    float scale[Slabs];

    __device__ __forceinline__ uint4* place(int half, int tile) const {
        return room + ((slot * 2 + half) * TILES + tile) * THREADS;
    }
    // Asks for a group's codes.
    __device__ __forceinline__ void fetch(const DenseGroup& ahead, const int (&rows)[TILES]) {
        if (ahead.inside(K))
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
                    cp_async16(place(half, t),
                               slab[t / 2 % Slabs].codes + (i64)rows[t] * K + ahead.column(half));
        cp_async_commit();
        slot = (slot + 1) % DENSE_RING;
    }
    __device__ __forceinline__ void start(const int (&rows)[TILES]) {
        here = {(int)threadIdx.x / 32, (int)threadIdx.x / 32};
        slot = 0;
        DenseGroup ahead = here;
#pragma unroll
        for (int i = 0; i < DENSE_RING; ++i) {
            fetch(ahead, rows);
            ahead.advance(K);
        }
        load_scales();
    }
    __device__ __forceinline__ void load_scales() {
        if (!here.inside(K)) return;
#pragma unroll
        for (int i = 0; i < Slabs; ++i)
            scale[i] = slab[i].scales[(i64)(row / CHUNK) * (K / CHUNK) + here.group];
    }
    // A lane without a token keeps its zeros.
    __device__ __forceinline__ void load_x() {
        if (!here.inside(K)) return;
        const int token = threadIdx.x % 32 / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            own[half][0] = own[half][1] = make_uint4(0, 0, 0, 0);
            if (token >= TOKENS) continue;
            const bf16* const from = x + (i64)token * K + here.column(half);
            own[half][0] = load16(from);
            own[half][1] = load16(from + 8);
        }
    }
};

// Two tiles' share of 64 columns, on to their sums.
__device__ __forceinline__ void multiply_dense(uint4 upper, uint4 lower, const uint4 (&x)[2],
                                               float (&sum)[4]) {
#pragma unroll
    for (int j = 0; j < DENSE_PRODUCTS; ++j) {
        const u32 words[2] = {word_of(upper, j), word_of(lower, j)};
        const u32 a[4] = {e4m3x2_to_bf16x2<0>(words[0]), e4m3x2_to_bf16x2<0>(words[1]),
                          e4m3x2_to_bf16x2<2>(words[0]), e4m3x2_to_bf16x2<2>(words[1])};
        const uint4 four = x[j / 2];
        const u32 b[2] = {j % 2 ? four.z : four.x, j % 2 ? four.w : four.y};
        mma_bf16_16816(sum, a, b);
    }
}

// All of a warp's parts into `dense_partial`, from a walk that has asked for its first groups.
template <int Slabs>
__device__ __forceinline__ void finish_dense(DenseWalk<Slabs>& walk, const int (&rows)[TILES]) {
    float total[PAIRS][4] = {};
    for (int step = 0; step < DENSE_STEPS; ++step) {
        if (!walk.here.inside(walk.K)) break;
        const int part = walk.here.part;
        float sum[PAIRS][4] = {};
        // With two places another group was asked for after this one.
        cp_async_wait<DENSE_RING - 1>();
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
                multiply_dense(*walk.place(half, 2 * pair), *walk.place(half, 2 * pair + 1),
                               walk.own[half], sum[pair]);
        if constexpr (DENSE_STEPS > DENSE_RING) {
            DenseGroup ahead = walk.here;
#pragma unroll
            for (int i = 0; i < DENSE_RING; ++i) ahead.advance(walk.K);
            walk.fetch(ahead, rows);  // its place is free now
        } else {
            walk.slot = (walk.slot + 1) % DENSE_RING;
        }
        walk.here.advance(walk.K);
        const bool whole = walk.here.part != part || !walk.here.inside(walk.K);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& mine = total[pair][i];
                mine = fmaf(sum[pair][i], walk.scale[pair % Slabs], mine);
                // Products hold rows lane / 4 and lane / 4 + 8 of two tiles, for two tokens.
                const int lane = threadIdx.x % 32;
                const int at = 16 * pair + 8 * (i / 2) + lane / 4, token = 2 * (lane % 4) + i % 2;
                if (whole && token < TOKENS) dense_partial[part][at][token] = mine;
                if (whole) mine = 0.0f;
            }
        if (step + 1 == DENSE_STEPS) continue;
        walk.load_scales();
        walk.load_x();
    }
}

__device__ __forceinline__ float dense_sum(int row, int token) {
    float sum = dense_partial[0][row][token];
#pragma unroll
    for (int part = 1; part < DENSE_PARTS; ++part) sum += dense_partial[part][row][token];
    return sum;
}

// ------------------------------------------------------------------------ gate and up

#if TILES == 4  // a pair of tiles from the gate, a pair from up

struct FirstHalf {
    const Slab gate, up;
    const float *gate_scale2, *up_scale2;
    const Dense shared_gate, shared_up;
    const i32* ids;
    const u8* x;
    const float *x_scales, *weights;
    const bf16* wide_x;
    float* y;
    bf16* shared_y;
    int E, A, N, K;
    float limit;
};

// One walk: this block's token's experts, or SLOTS of them. before: called once the first weights are
// asked for.
template <class Scales, class Before>
__device__ __forceinline__ void first_walk(const FirstHalf& h, const int (&rows)[TILES],
                                           int block_row, int number, const Before& before) {
    constexpr int HALF = ROWS / 2;
    // What the rows of a slot are multiplied by: the gate's scale2, up's, and the slot's share.
    __shared__ float factors[3][SLOTS];
    const int t = blockIdx.x, first = number * SLOTS, slots = min(SLOTS, h.A - first);
    const i64 slot = (i64)t * h.A + first;
    const Slab slab[2] = {h.gate, h.up};
    walk_part<Scales>(slab, rows, h.ids + slot, slots, h.E, h.N, h.K, [&] {
        before();
        if (threadIdx.x < slots) {
            const int s = threadIdx.x;
            const bool scaled = h.gate_scale2 != nullptr && is_expert(h.ids + slot, s, h.E);
            factors[0][s] = scaled ? h.gate_scale2[h.ids[slot + s]] : 1.0f;
            factors[1][s] = scaled ? h.up_scale2[h.ids[slot + s]] : 1.0f;
            factors[2][s] = h.weights[slot + s];
        }
        return stage(h.x, h.x_scales, t, h.K, DENSE_RING * 2 * TILES * THREADS * 4);
    });
    for (int i = threadIdx.x; i < slots * HALF; i += THREADS) {
        const int s = i / HALF, n = block_row + i % HALF;
        if (n >= h.N) continue;
        float value[2] = {NAN_F32, NAN_F32};
        if (is_expert(h.ids + slot, s, h.E)) {
            value[0] = whole_sum(s, i % HALF) * factors[0][s];
            value[1] = whole_sum(s, HALF + i % HALF) * factors[1][s];
        }
        h.y[(slot + s) * h.N + n] = weighted_swiglu(value[0], value[1], h.limit, factors[2][s]);
    }
}

template <class Scales>
__device__ __forceinline__ void gate_up(const FirstHalf& h) {
    constexpr int HALF = ROWS / 2;
    let_next_start();
    const int block_row = blockIdx.y * HALF;
    const bool has_shared = TOKENS == 1 || blockIdx.x == 0;
    int rows[TILES];
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const int row = block_row + 8 * (i % PAIRS) + threadIdx.x % 32 / 4;
        rows[i] = min(row, h.N - 1);
    }
    const Dense dense[2] = {h.shared_gate, h.shared_up};
    extern __shared__ __align__(16) u32 staged[];
    uint4* const room = (uint4*)(staged + X_ROWS * h.K / 2);
    DenseWalk<2> shared{dense, h.wide_x, room + threadIdx.x, h.K, block_row};
    if (has_shared) shared.start(rows);
    cp_async_commit();  // where the second half copies its rows
    wait_for_previous();
    if (has_shared) shared.load_x();
    if constexpr (TOKENS == 1 && SLOT_GROUPS == 1) {
        first_walk<Scales>(h, rows, block_row, 0, [&] { finish_dense(shared, rows); });
    } else {
        if (has_shared) finish_dense(shared, rows);
#pragma unroll 1
        for (int number = 0; number < SLOT_GROUPS; ++number) {
            first_walk<Scales>(h, rows, block_row, number, [] {});
            if (SLOT_GROUPS > 1) __syncthreads();  // its factors are read
        }
    }
    for (int i = threadIdx.x; has_shared && i < TOKENS * HALF; i += THREADS) {
        const int t = i / HALF, n = block_row + i % HALF;
        if (n >= h.N) continue;
        const float gate = dense_sum(i % HALF, t), up = dense_sum(HALF + i % HALF, t);
        h.shared_y[(i64)t * h.N + n] = f32_to_bf16(weighted_swiglu(gate, up, h.limit, 1.0f));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    experts_mx_gate_up(const u8* gate_codes, const u8* gate_scales, const u8* up_codes,
                       const u8* up_scales, const u8* shared_gate_codes,
                       const float* shared_gate_scales, const u8* shared_up_codes,
                       const float* shared_up_scales, const i32* ids, const u8* x,
                       const float* x_scales, const bf16* wide_x, const float* weights, float* y,
                       bf16* shared_y, i32 E, i32 A, i32 N, i32 K, float limit) {
    gate_up<MxScales>({{gate_codes, gate_scales},
                       {up_codes, up_scales},
                       nullptr,
                       nullptr,
                       {shared_gate_codes, shared_gate_scales},
                       {shared_up_codes, shared_up_scales},
                       ids,
                       x,
                       x_scales,
                       weights,
                       wide_x,
                       y,
                       shared_y,
                       E,
                       A,
                       N,
                       K,
                       limit});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    experts_nv_gate_up(const u8* gate_codes, const u8* gate_scales, const float* gate_scale2,
                       const u8* up_codes, const u8* up_scales, const float* up_scale2,
                       const u8* shared_gate_codes, const float* shared_gate_scales,
                       const u8* shared_up_codes, const float* shared_up_scales, const i32* ids,
                       const u8* x, const float* x_scales, const bf16* wide_x, const float* weights,
                       float* y, bf16* shared_y, i32 E, i32 A, i32 N, i32 K, float limit) {
    gate_up<NvScales>({{gate_codes, gate_scales},
                       {up_codes, up_scales},
                       gate_scale2,
                       up_scale2,
                       {shared_gate_codes, shared_gate_scales},
                       {shared_up_codes, shared_up_scales},
                       ids,
                       x,
                       x_scales,
                       weights,
                       wide_x,
                       y,
                       shared_y,
                       E,
                       A,
                       N,
                       K,
                       limit});
}

#endif

// ------------------------------------------------------------------------ down

struct SecondHalf {
    const Slab slab;
    const float* scale2;
    const Dense shared;
    const i32* ids;
    const float* hidden;
    const bf16* shared_x;
    const i32* order;
    float* y;
    int E, A, N, K;
};

// The groups of 128 that a warp puts on their grid: every WARPS-th, four elements a lane.
__device__ __forceinline__ int first_element() {
    return threadIdx.x / 32 * CHUNK + threadIdx.x % 32 * 4;
}

// Starts the copy of a walk's rows of hidden; a thread copies what it will quantise.
__device__ __forceinline__ void copy_rows(const float* hidden, int count, float* raw) {
    for (int i = first_element(); i < count; i += WARPS * CHUNK) cp_async16(raw + i, hidden + i);
    cp_async_commit();
}

__device__ __forceinline__ void quantise_rows(const float* raw, int count, const Inputs& in) {
    cp_async_wait<0>();
    for (int i = first_element(); i < count; i += WARPS * CHUNK) {
        const Floats<4> own = load_floats<4>(raw + i);
        float amax = FP8_FLOOR;
#pragma unroll
        for (int j = 0; j < 4; ++j) amax = fmaxf(amax, finite_magnitude(own.at[j]));
        const int k = fp8_exponent_of(warp_max_positive(amax));
        stage_word(in, i / 4, fp8_factors(own.at, exp2_of(-k)));
        if (threadIdx.x % 32 == 0) in.scales[i / CHUNK] = exp2_of(k) * 0x1p8f;
    }
}

__device__ __forceinline__ int slots_of(const SecondHalf& h, int number) {
    return min(SLOTS, h.A - number * SLOTS);
}

__device__ __forceinline__ void copy_walk(const SecondHalf& h, int number, float* raw) {
    const i64 slot = (i64)blockIdx.x * h.A + number * SLOTS;
    copy_rows(h.hidden + slot * h.K, slots_of(h, number) * h.K, raw);
}

// One walk; the last one sums the token's slots. before: as in first_walk.
template <class Scales, class Before>
__device__ __forceinline__ void second_walk(const SecondHalf& h, const int (&rows)[TILES],
                                            int block_row, int number, const Before& before) {
    __shared__ float values[SLOT_GROUPS * SLOTS][ROWS], second[SLOTS];
    __shared__ i32 places[SLOT_GROUPS * SLOTS];
    extern __shared__ __align__(16) u32 staged[];
    float* const raw = (float*)(staged + X_ROWS * (h.K / 2));
    // Scales lie last, behind what starts on 16 bytes.
    float* const scales = raw + X_ROWS * h.K + DENSE_RING * 2 * TILES * THREADS * 4;
    const int first = number * SLOTS, slots = slots_of(h, number);
    const i64 token = blockIdx.x;
    const i32* const ids = h.ids + token * h.A + first;
    const Slab slab[1] = {h.slab};
    walk_part<Scales>(slab, rows, ids, slots, h.E, h.N, h.K, [&] {
        const Inputs in = {staged, scales};
        before();
        if (threadIdx.x < slots) {
            const int s = threadIdx.x;
            const bool scaled = h.scale2 != nullptr && is_expert(ids, s, h.E);
            second[s] = scaled ? h.scale2[ids[s]] : 1.0f;
            places[first + s] = h.order[token * h.A + first + s];
        }
        quantise_rows(raw, slots * h.K, in);
        if (number + 1 < SLOT_GROUPS) copy_walk(h, number + 1, raw);
        return in;
    });
    for (int i = threadIdx.x; i < slots * ROWS; i += THREADS) {
        const int s = i / ROWS;
        values[first + s][i % ROWS] = is_expert(ids, s, h.E) ? whole_sum(s, i % ROWS) * second[s]
                                                             : NAN_F32;
    }
    __syncthreads();
    if (number != SLOT_GROUPS - 1) return;
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        if (block_row + i >= h.N) continue;
        float sum = 0.0f;
        for (int a = 0; a < h.A; ++a) {
            const i32 s = places[a];
            sum += s >= 0 && s < h.A ? values[s][i] : NAN_F32;
        }
        h.y[token * h.N + block_row + i] = sum + dense_sum(i, 0);
    }
}

template <class Scales>
__device__ __forceinline__ void down(const SecondHalf& h) {
    extern __shared__ __align__(16) u32 staged[];
    let_next_start();
    const int block_row = blockIdx.y * ROWS;
    int rows[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t)
        rows[t] = min((int)(block_row + 8 * t + threadIdx.x % 32 / 4), h.N - 1);
    const Dense dense[1] = {h.shared};
    float* const raw = (float*)(staged + X_ROWS * (h.K / 2));
    uint4* const room = (uint4*)(raw + X_ROWS * h.K);
    const bf16* const own_x = h.shared_x + (i64)blockIdx.x * h.K;
    DenseWalk<1> shared{dense, own_x, room + threadIdx.x, h.K, block_row};
    shared.start(rows);
    wait_for_previous();
    copy_walk(h, 0, raw);
    shared.load_x();
    if constexpr (SLOT_GROUPS == 1) {
        second_walk<Scales>(h, rows, block_row, 0, [&] { finish_dense(shared, rows); });
    } else {
        finish_dense(shared, rows);
#pragma unroll 1
        for (int number = 0; number < SLOT_GROUPS; ++number)
            second_walk<Scales>(h, rows, block_row, number, [] {});
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    experts_mx_down(const u8* codes, const u8* scales, const u8* shared_codes,
                    const float* shared_scales, const i32* ids, const float* hidden,
                    const bf16* shared_x, const i32* order, float* y, i32 E, i32 A, i32 N, i32 K) {
    down<MxScales>({{codes, scales},
                    nullptr,
                    {shared_codes, shared_scales},
                    ids,
                    hidden,
                    shared_x,
                    order,
                    y,
                    E,
                    A,
                    N,
                    K});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    experts_nv_down(const u8* codes, const u8* scales, const float* scale2, const u8* shared_codes,
                    const float* shared_scales, const i32* ids, const float* hidden,
                    const bf16* shared_x, const i32* order, float* y, i32 E, i32 A, i32 N, i32 K) {
    down<NvScales>({{codes, scales},
                    scale2,
                    {shared_codes, shared_scales},
                    ids,
                    hidden,
                    shared_x,
                    order,
                    y,
                    E,
                    A,
                    N,
                    K});
}

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
// those with the same expert share it through the L2 cache. All weights go through the ring of
// common/fp4_walk.cuh: the shared expert's first, which depend on no routing. ..._gate_up has the shared
// expert's rows for all tokens in the blocks of token 0; ..._down has them in every block, for the sum is
// there. A walk takes SLOTS experts.
//
// ..._gate_up multiplies the shared expert's before it waits for the kernel in front, which chooses the
// others from the same rows (it passes on, see common/overlap.cuh): memory would idle meanwhile.
//
// ..._down has the chosen experts' weights follow the shared one's in the ring, as places become free.
// What the kernel before has written (ids, hidden rows) it asks for all at once: a chain of loads behind
// the ring's, which fill a multiprocessor's queue for a microsecond or two, would cost that much a load,
// and memory would idle when the ring is there.
//
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
// Build constants: those of common/fp4_walk.cuh, TOKENS (that a block has rows of the shared expert
// for: T, at most 8, or 1), SLOT_GROUPS (walks of a token), DENSE_PARTS.
#include "common/fp4_walk.cuh"

#include "common/hidden_groups.cuh"
#include "common/overlap.cuh"
#include "common/shared_expert.cuh"
#include "common/swiglu.cuh"

// ------------------------------------------------------------------------ what a slot brings along

// A slot's expert, or -1.
__shared__ i32 experts[SLOTS];

// Slots of the walk that begins at one. Where there is one walk, the build knows.
__device__ __forceinline__ int slots_from(int first, int A) {
    return SLOT_GROUPS == 1 ? SLOTS : min(SLOTS, A - first);
}

__device__ __forceinline__ void copy_scale2(float* to, const float* scale2, int id) {
    if (scale2 != nullptr && id >= 0)
        cp_async<4>(to, scale2 + id);
    else
        *to = 1.0f;
}

// ------------------------------------------------------------------------ gate and up

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
    int E, A, N;
    float limit;
};

// What the rows of a slot are multiplied by: the gate's scale2, up's, and the slot's share.
__shared__ float factors[3][SLOTS];

__device__ __forceinline__ void copy_factors(const FirstHalf& h, i64 slot, int slots, int id) {
    const int s = threadIdx.x;
    if (s >= slots) return;
    copy_scale2(&factors[0][s], h.gate_scale2, id);
    copy_scale2(&factors[1][s], h.up_scale2, id);
    cp_async<4>(&factors[2][s], h.weights + slot + s);
}

// The rows of a walk, and with the last one those of the shared expert for `tokens` tokens.
__device__ __forceinline__ void store_first(const FirstHalf& h, i64 slot, int slots, int block_row,
                                            int tokens) {
    constexpr int HALF = ROWS / 2;
    for (int i = threadIdx.x; i < (slots + tokens) * HALF; i += THREADS) {
        const int s = i / HALF, t = s - slots, row = i % HALF, n = block_row + row;
        if (n >= h.N) continue;
        float gate = NAN_F32, up = NAN_F32;
        if (s >= slots) {
            gate = dense_sum(row, t), up = dense_sum(HALF + row, t);
        } else if (is_expert(experts[s], h.E)) {
            gate = whole_sum(s, row) * factors[0][s];
            up = whole_sum(s, HALF + row) * factors[1][s];
        }
        const float y = weighted_swiglu(gate, up, h.limit, s < slots ? factors[2][s] : 1.0f);
        if (s < slots)
            h.y[(slot + s) * h.N + n] = y;
        else
            h.shared_y[(i64)t * h.N + n] = f32_to_bf16(y);
    }
}

template <class Scales>
__device__ __forceinline__ void gate_up(const FirstHalf& h) {
    constexpr int HALF = ROWS / 2;
    extern __shared__ __align__(128) u8 staged[];
    let_next_start();
    const int t = blockIdx.x, block_row = blockIdx.y * HALF;
    const bool has_shared = TOKENS == 1 || t == 0;
    const auto row_of = [&](int i) { return min(block_row + i % HALF, h.N - 1); };
    const Rows rows = Rows::of_lane(row_of);
    const Ring ring = Ring::at(staged);
    const ScaleRoom<Scales> scales = {staged + Ring::BYTES};
    u32* const x = (u32*)(scales.room + scales.BYTES);
    bf16* const room = (bf16*)(x + K / 2);
    const Inputs in = {x, (float*)(room + (TOKENS == 1 ? K : 0))};
    const Slab slab[2] = {h.gate, h.up};
    Walk<2> walk{slab, rows};
    walk.begin_empty();
    const Dense dense[2] = {h.shared_gate, h.shared_up};
    DenseWalk<2, 2> shared{dense, rows, walk};
    Stream stream;
    if (has_shared) {
        copy_dense_factors(dense, block_row);
        if (TOKENS == 1) copy_wide(room, h.wide_x + (i64)t * K);
        cp_async_commit();
        fill_dense(shared, stream, ring);
        fill_behind(shared, stream, ring);  // empty groups: no expert is known yet
    }
    stage(in, h.x, h.x_scales, t, first_of_x(h.x, h.x_scales, t));
    clear_zeros();
    cp_async_wait<RING>();
    __syncthreads();
    if (has_shared) finish_dense(shared, stream, ring, TOKENS == 1 ? room : h.wide_x);
    wait_for_previous();

#pragma unroll 1
    for (int number = 0; number < SLOT_GROUPS; ++number) {
        const int first = number * SLOTS, slots = slots_from(first, h.A);
        const i64 slot = (i64)t * h.A + first;
        const int id = id_of_lane(h.ids + slot, slots, h.E);
        if (threadIdx.x < slots) experts[threadIdx.x] = id;
        copy_factors(h, slot, slots, id);
        scales.copy(slab, id, slots, h.N, row_of);
        cp_async_commit();
        walk.begin(id, h.N);
        fill<0>(walk, stream, ring);
        cp_async_wait<RING>();
        __syncthreads();
        finish_walk<0>(walk, stream, ring, in, scales);
        __syncthreads();
        const bool last = number + 1 == SLOT_GROUPS;
        store_first(h, slot, slots, block_row, last && has_shared ? TOKENS : 0);
        if (!last) __syncthreads();  // its factors are read
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
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
                       limit});
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
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
                       limit});
}

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
    int E, A, N;
};

__shared__ float second[SLOTS];
__shared__ i32 places[SLOT_GROUPS * SLOTS];

__device__ __forceinline__ void copy_places(const SecondHalf& h, i64 slot, int first, int slots,
                                            int id) {
    const int s = threadIdx.x;
    if (s >= slots) return;
    copy_scale2(&second[s], h.scale2, id);
    cp_async<4>(&places[first + s], h.order + slot + s);
}

template <class Scales>
__device__ __forceinline__ void down(const SecondHalf& h) {
    // Of all slots, and last of the shared expert.
    __shared__ float values[SLOT_GROUPS * SLOTS + 1][ROWS];
    extern __shared__ __align__(128) u8 staged[];
    let_next_start();
    const int block_row = blockIdx.y * ROWS;
    const i64 token = blockIdx.x;
    const auto row_of = [&](int i) { return min(block_row + i, h.N - 1); };
    const Rows rows = Rows::of_lane(row_of);
    const Ring ring = Ring::at(staged);
    const ScaleRoom<Scales> scales = {staged + Ring::BYTES};
    u32* const x = (u32*)(scales.room + scales.BYTES);
    bf16* const room = (bf16*)(x + X_ROWS * (K / 2));
    const Inputs in = {x, (float*)(room + K)};
    const Slab slab[1] = {h.slab};
    Walk<1> walk{slab, rows};
    const Dense dense[1] = {h.shared};
    DenseWalk<1, 1> shared{dense, rows, walk};
    Stream stream;
    copy_dense_factors(dense, block_row);
    fill_dense(shared, stream, ring);
    wait_for_previous();
    copy_wide(room, h.shared_x + token * K);
    cp_async_commit();
    Groups groups;
    groups.load(h.hidden + token * h.A * K, Groups::first(), slots_from(0, h.A) * K);
    clear_zeros();
    __syncthreads();

#pragma unroll 1
    for (int number = 0; number < SLOT_GROUPS; ++number) {
        const int first = number * SLOTS, slots = slots_from(first, h.A);
        const i64 slot = token * h.A + first;
        const float* const hidden = h.hidden + slot * K;
        const int id = id_of_lane(h.ids + slot, slots, h.E);
        if (threadIdx.x < slots) experts[threadIdx.x] = id;
        if (number != 0) groups.load(hidden, Groups::first(), slots * K);
        copy_places(h, slot, first, slots, id);
        scales.copy(slab, id, slots, h.N, row_of);
        cp_async_commit();
        walk.begin(id, h.N);
        if (number == 0)
            fill_behind(shared, stream, ring);
        else
            fill<FIRST_ROUTED>(walk, stream, ring);
        // The shared expert's first: what it frees of the ring is on its way while rows find their grid.
        if (number == 0) {
            cp_async_wait<1 + RING - ASKED_AHEAD>();
            __syncwarp();
            finish_dense(shared, stream, ring, room);
        }
        quantise_rows(groups, hidden, min(SLOTS, h.A - first) * K, in);
        cp_async_wait<RING>();
        __syncthreads();
        finish_walk<FIRST_ROUTED>(walk, stream, ring, in, scales);
        __syncthreads();
        for (int i = threadIdx.x; i < slots * ROWS; i += THREADS) {
            const int s = i / ROWS, row = i % ROWS;
            const bool there = is_expert(experts[s], h.E);
            values[first + s][row] = there ? whole_sum(s, row) * second[s] : NAN_F32;
        }
        if (number + 1 < SLOT_GROUPS) __syncthreads();  // its numbers are read
        if (number != 0) continue;
        // Threads behind those of the slots, where there are enough.
        const int behind = (slots + 1) * ROWS <= THREADS ? slots * ROWS : 0;
        const int i = (int)threadIdx.x - behind;
        if (i >= 0 && i < ROWS) values[SLOT_GROUPS * SLOTS][i] = dense_sum(i, 0);
    }
    __syncthreads();
    const int active = SLOT_GROUPS == 1 ? SLOTS : h.A;
    for (int i = threadIdx.x; i < ROWS && block_row + i < h.N; i += THREADS) {
        float sum = 0.0f;
        for (int a = 0; a < active; ++a) {
            const i32 s = places[a];
            sum += s >= 0 && s < active ? values[s][i] : NAN_F32;
        }
        h.y[token * h.N + block_row + i] = sum + values[SLOT_GROUPS * SLOTS][i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
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
                    N});
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
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
                    N});
}

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
// common/fp4.cuh says in which order sums are taken, and common/fp4_walk.cuh how.
//
// A block has 8 * TILES rows of w and the slots of one row of x (for ..._down those of a token). Rows
// past the end repeat the last one and are not stored. ids live on the device, so they are checked here: an id that is no
// expert gives a row of NaN and reads no weights.
//
// x_scales are at least 2^-22, as the quantiser makes them. A NaN code or scale makes its row NaN.
//
// Build constants: those of common/fp4_walk.cuh.
#include "common/fp4_walk.cuh"

#include "common/swiglu.cuh"

// The sums of a block's slots, of which x has rows from first_row on. ids: null for one matrix. row_of:
// as in Rows.
template <class Scales, int Slabs, class RowOf>
__device__ __forceinline__ void sum_slots(const Slab (&slab)[Slabs], const RowOf& row_of,
                                          const i32* ids, int slots, const u8* x,
                                          const float* x_scales, i64 first_row, int E, int N) {
    extern __shared__ __align__(128) u8 staged[];
    const Ring ring = Ring::at(staged);
    const ScaleRoom<Scales> scales = {staged + Ring::BYTES};
    u32* const own = (u32*)(scales.room + scales.BYTES);
    const Inputs in = {own, (float*)(own + X_ROWS * (K / 2))};
    const Rows rows = Rows::of_lane(row_of);
    Walk<Slabs> walk{slab, rows};
    Stream stream;
    const int id = id_of_lane(ids, slots, E);
    scales.copy(slab, id, slots, N, row_of);
    cp_async_commit();
    walk.begin(id, N);
    fill<0>(walk, stream, ring);
    stage(in, x, x_scales, first_row, first_of_x(x, x_scales, first_row));
    clear_zeros();
    cp_async_wait<RING>();
    __syncthreads();
    finish_walk<0>(walk, stream, ring, in, scales);
    __syncthreads();
}

// The row of a matrix that is row i of the block.
__device__ __forceinline__ int row_of_block(int i, int N) {
    return min((int)blockIdx.y * ROWS + i, N - 1);
}

template <class Scales>
__device__ __forceinline__ void one_matrix(const u8* codes, const u8* scales, const float* scale2,
                                           const u8* x, const float* x_scales, float* y, int N) {
    const auto row_of = [&](int i) { return row_of_block(i, N); };
    const Slab slab[1] = {{codes, scales}};
    sum_slots<Scales>(slab, row_of, nullptr, 1, x, x_scales, blockIdx.x, 1, N);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int n = blockIdx.y * ROWS + i;
        const float sum = whole_sum(0, i);
        if (n < N) y[(i64)blockIdx.x * N + n] = scale2 == nullptr ? sum : sum * scale2[0];
    }
}

template <class Scales>
__device__ __forceinline__ void selected(const u8* codes, const u8* scales, const float* scale2,
                                         const i32* ids, const u8* x, const float* x_scales,
                                         float* y, int E, int N, int group) {
    const int blocks = (group + SLOTS - 1) / SLOTS;  // that share a row of x
    const i64 t = blockIdx.x / blocks;
    const int first = blockIdx.x % blocks * SLOTS, slots = min(SLOTS, group - first);
    const i64 slot = t * group + first;
    const auto row_of = [&](int i) { return row_of_block(i, N); };
    const Slab slab[1] = {{codes, scales}};
    sum_slots<Scales>(slab, row_of, ids + slot, slots, x, x_scales, t, E, N);
    for (int i = threadIdx.x; i < slots * ROWS; i += THREADS) {
        const int s = i / ROWS, n = blockIdx.y * ROWS + i % ROWS;
        if (n >= N) continue;
        float sum = NAN_F32;
        if (is_expert(ids[slot + s], E)) {
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
    one_matrix<MxScales>(codes, scales, nullptr, x, x_scales, y, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv(const u8* codes, const u8* scales, const float* scale2, const u8* x,
                  const float* x_scales, float* y, i32 N, i32 K) {
    one_matrix<NvScales>(codes, scales, scale2, x, x_scales, y, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx_selected(const u8* codes, const u8* scales, const i32* ids, const u8* x,
                           const float* x_scales, float* y, i32 E, i32 N, i32 K, i32 group) {
    selected<MxScales>(codes, scales, nullptr, ids, x, x_scales, y, E, N, group);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_selected(const u8* codes, const u8* scales, const float* scale2, const i32* ids,
                           const u8* x, const float* x_scales, float* y, i32 E, i32 N, i32 K,
                           i32 group) {
    selected<NvScales>(codes, scales, scale2, ids, x, x_scales, y, E, N, group);
}

#endif

// ------------------------------------------------------------------------ the halves of an expert

template <class Scales>
__device__ __forceinline__ void down(const u8* codes, const u8* scales, const float* scale2,
                                     const i32* ids, const u8* x, const float* x_scales,
                                     const i32* order, const float* shared, float* y, int E,
                                     int N) {
    const i64 t = blockIdx.x, slot = t * SLOTS;
    const auto row_of = [&](int i) { return row_of_block(i, N); };
    const Slab slab[1] = {{codes, scales}};
    sum_slots<Scales>(slab, row_of, ids + slot, SLOTS, x, x_scales, slot, E, N);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int n = blockIdx.y * ROWS + i;
        if (n >= N) continue;
        float sum = 0.0f;
        for (int a = 0; a < SLOTS; ++a) {
            const i32 s = order[slot + a];
            float value = NAN_F32;
            if (s >= 0 && s < SLOTS && is_expert(ids[slot + s], E)) {
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
                                        int E, int N, int group, float limit) {
    constexpr int HALF = ROWS / 2;
    const int blocks = (group + SLOTS - 1) / SLOTS;
    const i64 t = blockIdx.x / blocks;
    const int first = blockIdx.x % blocks * SLOTS, slots = min(SLOTS, group - first);
    const i64 slot = t * group + first;
    const auto row_of = [&](int i) { return min((int)blockIdx.y * HALF + i % HALF, N - 1); };
    const Slab slab[2] = {gate, up};
    sum_slots<Scales>(slab, row_of, ids + slot, slots, x, x_scales, t, E, N);
    for (int i = threadIdx.x; i < slots * HALF; i += THREADS) {
        const int s = i / HALF, n = blockIdx.y * HALF + i % HALF;
        if (n >= N) continue;
        float value[2] = {NAN_F32, NAN_F32};
        if (is_expert(ids[slot + s], E)) {
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
                      x_scales, weights, y, E, N, group, limit);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_gate_up(const u8* gate_codes, const u8* gate_scales, const float* gate_scale2,
                          const u8* up_codes, const u8* up_scales, const float* up_scale2,
                          const i32* ids, const u8* x, const float* x_scales, const float* weights,
                          float* y, i32 E, i32 N, i32 K, i32 group, float limit) {
    gate_up<NvScales>({gate_codes, gate_scales}, {up_codes, up_scales}, gate_scale2, up_scale2, ids,
                      x, x_scales, weights, y, E, N, group, limit);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_mx_down(const u8* codes, const u8* scales, const i32* ids, const u8* x,
                       const float* x_scales, const i32* order, const float* shared, float* y,
                       i32 E, i32 N, i32 K) {
    down<MxScales>(codes, scales, nullptr, ids, x, x_scales, order, shared, y, E, N);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    linear_fp4_nv_down(const u8* codes, const u8* scales, const float* scale2, const i32* ids,
                       const u8* x, const float* x_scales, const i32* order, const float* shared,
                       float* y, i32 E, i32 N, i32 K) {
    down<NvScales>(codes, scales, scale2, ids, x, x_scales, order, shared, y, E, N);
}

// hyper_step: what stands between two sub-blocks, before the first and behind the last, in one launch
//
//   hyper_step_open     the streams after a sub-block, and the next one's input and scaled mixes: the
//                       bytes of hyper_post, island_dots_f32, hyper_norm_scale_f32, and of the input of
//                       hyper_post_pre_norm_f32; y as its readers take it too, the bytes of cast_bf16
//                       (wide) and of act_quant_fp8 in groups of 128 (codes, scales)
//   hyper_step_streams  the same of streams that are there, as a stage receives them
//   hyper_step_entry    the same of streams that are all the embedding of the token: x_next has the bytes
//                       of movement_embed and movement_repeat
//   hyper_step_exit     streams collapsed for a head, and normed: the bytes of island_dots_f32,
//                       hyper_norm_scale_f32, hyper_head_gate, hyper_collapse and rms_norm_f32
//
// Post and comb are left open: the next launch balances the mixes in a block of its own, while its others
// have products to do (project, router_gate). Here it would be a long chain at the end.
//
//   z f32 [T, D]    x, x_next f32 [T, M, D]    post f32 [T, M]    comb f32 [T, M, M]
//   fn f32 [C, M D]    scale f32 [3]    base f32 [C]    gain f32 [D]    C = (2 + M) M, or M for exit
//   mix f32 [T, C]    y f32 [T, D]    wide bf16 [T, D]    codes e4m3 [T, D]    scales f32 [T, D / 128]
//
// Sums are those of the kernels named. PARTS blocks share a row. Each makes the streams of its 256
// elements, multiplies them with its columns of fn, which it asks for before it waits for the kernel
// before, and leaves C + 1 partial sums (the last of squares) in `partial`. An integer ticket tells the
// block that comes last that all others are done; it alone adds the parts, in ascending order, and
// finishes the row. Every block would compute the same, so who is last does not show. The ticket must
// be 0 before a launch and is 0 after it.
//
// The last block needs all streams of its row. It fetches them to shared memory when it learns that it is
// the last (GATHER 1), or reads them where it needs them, when they are too wide for that (0). The bytes
// are the same.
//
// In the last block thread i has the columns i, i + 512, ..., as in rms_norm; one more warp has the
// coefficients. y then goes through shared memory, for a group of 128 is a warp's when it is put on its
// grid.
//
// Build constants: STREAMS, PARTS (ceil(M D / 256), at most 256), PER_THREAD
// (ceil(D / 512), at most 16), GATHER.
#include "common/fp8_groups.cuh"
#include "common/mixing.cuh"
#include "common/overlap.cuh"
#include "common/sources.cuh"
#include "common/tickets.cuh"

#ifndef GATHER
#define GATHER 1
#endif

constexpr int NORM_THREADS = 512;
constexpr int WARPS = NORM_THREADS / 32;
constexpr int FUSED_WARPS = WARPS + 1;
constexpr int FP8_GROUP = 128;  // columns
constexpr int PART_LOADS = (PARTS + 31) / 32;
// Blocks of a multiprocessor, or of this kernel and the next.
constexpr int RESIDENT = STREAMS <= 5 && PER_THREAD <= 8 ? 2 : 1;

struct Weights {
    const float *fn, *scale, *base, *gain;
    float mix_eps, eps, norm_eps;
};
struct Written {
    float *x, *collapsed, *y;
    bf16* wide;
    u8* codes;
    float *scales, *mix;
};

// ------------------------------------------------------------------------ all blocks of a row

// What the last block of a row reads, a piece a block: it would wait for memory alone.
__device__ __forceinline__ void prefetch_rest(const Weights& w, int part, int D) {
    constexpr int LINE = 32;  // floats
    const int column = (part * NORM_THREADS + (int)threadIdx.x) * LINE;
    if (column < D) prefetch_l2(w.gain + column);
    if (part == 0 && threadIdx.x == NORM_THREADS) {
        prefetch_l2(w.scale);
        prefetch_l2(w.base);
    }
}

// Rows: of fn. The streams go to x_next unless that is null.
template <int Rows, class Source>
__device__ __forceinline__ void leave_partial_sums(const Source& source, const float* fn,
                                                   float* x_next, float* partial, i64 t, int part,
                                                   int D) {
    constexpr int ROUNDS = (Rows + FUSED_WARPS) / FUSED_WARPS;  // sums of a warp, Rows + 1 in all
    __shared__ __align__(16) float fresh[STEP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = STREAMS * D;
    const int k = part * STEP + lane * LANE_ELEMENTS;
    Floats<4> weights[ROUNDS][2] = {};
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int c = round * FUSED_WARPS + warp;
        if (c >= Rows || k >= count) continue;
        weights[round][0] = load_floats<4>(fn + (i64)c * count + k);
        weights[round][1] = load_floats<4>(fn + (i64)c * count + k + 4);
    }
    wait_for_previous();
    const int at = part * STEP + (int)threadIdx.x;
    if (threadIdx.x < STEP && at < count) {
        const float value = source.element(t, D, at);
        fresh[threadIdx.x] = value;
        if (x_next != nullptr) x_next[t * count + at] = value;
    }
    __syncthreads();
    Floats<4> v[2] = {};
    if (k < count) {
        v[0] = load_floats<4>(fresh + lane * LANE_ELEMENTS);
        v[1] = load_floats<4>(fresh + lane * LANE_ELEMENTS + 4);
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int c = round * FUSED_WARPS + warp;
        if (c > Rows) continue;
        float sum = 0.0f;
        // Lanes past the end multiply zeros, which leaves their +0 as it is.
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; ++i) {
            const float value = v[i / 4].at[i % 4];
            sum = fmaf(c < Rows ? weights[round][i / 4].at[i % 4] : value, value, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) partial[(t * (Rows + 1) + c) * PARTS + part] = sum;
    }
}

// Whether this block is the last of its row to come here.
__device__ __forceinline__ bool is_last(i32* ticket) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == NORM_THREADS) last = take_last_ticket(ticket, PARTS);
    __syncthreads();
    return last;
}

// ------------------------------------------------------------------------ the last block of a row

// Whether a head comes behind, and no sub-block: it takes one format, and has nothing to mix.
template <int Rows>
constexpr bool IS_EXIT = Rows == STREAMS;

// A group of y as its readers take it, by a warp: a lane has four neighbours.
__device__ __forceinline__ void store_group(const Written& row, const float* y, int group) {
    const int d = group * FP8_GROUP + (int)threadIdx.x % 32 * 4;
    const Floats<4> own = load_floats<4>(y + d);
    float amax = FP8_FLOOR;
#pragma unroll
    for (int e = 0; e < 4; ++e) amax = fmaxf(amax, finite_magnitude(own.at[e]));
    const int k = fp8_exponent_of(warp_max_positive(amax));
    const float inverse = exp2_of(-k);
    u32 codes = 0, wide[2] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        codes |= (u32)fp8_code(own.at[e], inverse) << 8 * e;
        wide[e / 2] |= (u32)f32_to_bf16(own.at[e]) << 16 * (e % 2);
    }
    store_floats(row.y + d, own);
    *(uint2*)(row.wide + d) = make_uint2(wide[0], wide[1]);
    *(u32*)(row.codes + d) = codes;
    if (threadIdx.x % 32 == 0) row.scales[group] = exp2_of(k);
}

// What other blocks wrote is read past L1, which may hold older bytes. row: of token t. tile: room for
// the row's streams, which are there where they are gathered; then for y.
template <int Rows>
__device__ __forceinline__ void finish_row(const Streams& streams, const Weights& w,
                                           const Written& row, const float* partial, float* tile,
                                           i64 t, int D) {
    constexpr int ROUNDS = (Rows + FUSED_WARPS) / FUSED_WARPS;
    __shared__ float totals[Rows + 1], sums[WARPS], logits[Rows], gates[STREAMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = STREAMS * D;
    float parts[ROUNDS][PART_LOADS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round)
#pragma unroll
        for (int i = 0; i < PART_LOADS; ++i) {
            const int c = round * FUSED_WARPS + warp, part = 32 * i + lane;
            parts[round][i] = c <= Rows && part < PARTS ? __ldcg(partial + c * PARTS + part) : 0.0f;
        }
    // All have their weights before they have their sums.
    float gain[PER_THREAD];
#pragma unroll
    for (int q = 0; q < PER_THREAD; ++q) {
        const int d = q * NORM_THREADS + threadIdx.x;
        gain[q] = threadIdx.x < NORM_THREADS && d < D ? w.gain[d] : 0.0f;
    }
    float scale = 0.0f, base = 0.0f;
    if (warp == WARPS && lane < STREAMS) scale = w.scale[0], base = w.base[lane];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int c = round * FUSED_WARPS + warp;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PART_LOADS; ++i) sum += parts[round][i];
        sum = warp_sum(sum);
        if (lane == 0 && c <= Rows) totals[c] = sum;
    }
    if (GATHER) cp_async_wait<0>();
    __syncthreads();
    if (warp == WARPS) {
        for (int c = lane; c < Rows; c += 32)
            logits[c] = scaled(totals[c], totals[Rows], count, w.mix_eps);
        __syncwarp();
        if (lane < STREAMS) gates[lane] = gate(logits[lane], scale, base) + w.eps;
    }
    __syncthreads();
    float y[PER_THREAD];
    if (warp == WARPS) {
        if (!IS_EXIT<Rows>)
            for (int c = lane; c < Rows; c += 32) row.mix[c] = logits[c];
    } else {
        float sum = 0.0f;
#pragma unroll
        for (int q = 0; q < PER_THREAD; ++q) {
            const int d = q * NORM_THREADS + threadIdx.x;
            y[q] = 0.0f;
            if (d >= D) continue;
            float v[STREAMS];
            streams.column(tile, t, D, d, v);
#pragma unroll
            for (int m = 0; m < STREAMS; ++m) y[q] = fmaf(gates[m], v[m], y[q]);
            sum = fmaf(y[q], y[q], sum);
            if (IS_EXIT<Rows>) row.collapsed[d] = y[q];
        }
        sum = warp_sum(sum);
        if (lane == 0) sums[warp] = sum;
    }
    __syncthreads();
    if (warp < WARPS) {
        const float squares = warp_sum(lane < WARPS ? sums[lane] : 0.0f);
        const float factor = 1.0f / sqrtf(squares / (float)D + w.norm_eps);
#pragma unroll
        for (int q = 0; q < PER_THREAD; ++q) {
            const int d = q * NORM_THREADS + threadIdx.x;
            y[q] = gain[q] * (y[q] * factor);
            if (d < D) (IS_EXIT<Rows> ? row.y : tile)[d] = y[q];
        }
    }
    if (IS_EXIT<Rows>) return;
    __syncthreads();
    for (int group = warp; group < D / FP8_GROUP; group += FUSED_WARPS)
        store_group(row, tile, group);
}

template <int Rows, class Source>
__device__ __forceinline__ void step(const Source& source, const Weights& w, const float* x,
                                     Written out, float* partial, i32* ticket, int D) {
    extern __shared__ __align__(16) float tile[];
    let_next_start();
    const i64 t = blockIdx.x / PARTS;
    prefetch_rest(w, blockIdx.x % PARTS, D);
    leave_partial_sums<Rows>(source, w.fn, out.x, partial, t, blockIdx.x % PARTS, D);
    if (!is_last(ticket + t)) return;
    out.y += t * D;
    if (IS_EXIT<Rows>) {
        out.collapsed += t * D;
    } else {
        out.wide += t * D;
        out.codes += t * D;
        out.scales += t * (D / 128);
        out.mix += t * MIXES;
    }
    partial += t * (Rows + 1) * PARTS;
    const Streams streams{x};
    if (GATHER && threadIdx.x < NORM_THREADS) {
        streams.fetch(tile, t, D, threadIdx.x, NORM_THREADS);
        cp_async_commit();
    }
    finish_row<Rows>(streams, w, out, partial, tile, t, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, RESIDENT)
    hyper_step_open(const float* z, const float* x, const float* post, const float* comb,
                    const float* fn, const float* scale, const float* base, const float* gain,
                    float* x_next, float* mix, float* y, bf16* wide, u8* codes, float* scales,
                    float* partial, i32* ticket, i32 D, float mix_eps, float eps, float norm_eps) {
    step<MIXES>(AfterBlock{z, x, post, comb}, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                x_next, {x_next, nullptr, y, wide, codes, scales, mix}, partial, ticket, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, RESIDENT)
    hyper_step_streams(const float* x, const float* fn, const float* scale, const float* base,
                       const float* gain, float* mix, float* y, bf16* wide, u8* codes,
                       float* scales, float* partial, i32* ticket, i32 D, float mix_eps, float eps,
                       float norm_eps) {
    step<MIXES>(Streams{x}, {fn, scale, base, gain, mix_eps, eps, norm_eps}, x,
                {nullptr, nullptr, y, wide, codes, scales, mix}, partial, ticket, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, RESIDENT)
    hyper_step_entry(const bf16* table, const i32* tokens, const float* fn, const float* scale,
                     const float* base, const float* gain, float* x_next, float* mix, float* y,
                     bf16* wide, u8* codes, float* scales, float* partial, i32* ticket, i32 V,
                     i32 D, float mix_eps, float eps, float norm_eps) {
    step<MIXES>(Embedding{table, tokens, V}, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                x_next, {x_next, nullptr, y, wide, codes, scales, mix}, partial, ticket, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, RESIDENT)
    hyper_step_exit(const float* x, const float* fn, const float* scale, const float* base,
                    const float* gain, float* collapsed, float* y, float* partial, i32* ticket,
                    i32 D, float mix_eps, float eps, float norm_eps) {
    step<STREAMS>(Streams{x}, {fn, scale, base, gain, mix_eps, eps, norm_eps}, x,
                  {nullptr, collapsed, y, nullptr, nullptr, nullptr, nullptr}, partial, ticket, D);
}

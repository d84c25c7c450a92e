// hyper: hyper-connections, M residual streams mixed into each sub-block and back out
//
//   norm_scale      mix[t,:] *= 1 / sqrt(mean(x[t,:,:]^2) + mix_eps)
//   split           mix -> pre, post, comb: sigmoid gates, and comb made nearly doubly stochastic
//   collapse        y[t,d] = sum over m of pre[t,m] x[t,m,d]
//   post            out[t,k,d] = post[t,k] z[t,d] + sum over j of comb[t,j,k] x[t,j,d]
//   head_gate       pre[t,m] = sigmoid(mix[t,m] scale[0] + base[m]) + eps
//   pre             norm_scale, split and collapse in one launch
//   post_pre_norm   post, then the next sub-block's mixes (fn times all streams), norm_scale, split,
//                   collapse and RMS norm in one launch
//
//   x f32 [T, M, D]    mix f32 [T, C], C = (2 + M) M    pre, post f32 [T, M]    comb f32 [T, M, M]
//   fn f32 [C, M D]    scale f32 [3]    base f32 [C]    z, y f32 [T, D]    gain f32 [D]
//
// Everything is f32; norm_scale, pre and post_pre_norm sum products in f64, their _f32 twins in f32.
// Sums over streams are fused multiply-adds in ascending order: collapse from +0, post from
// post * z. Sums over M D follow common/parts.cuh with parts of one step, like island_dots; the sum
// of the RMS norm is that of rms_norm. So the fused kernels give the bytes of post, island_dots,
// norm_scale, split, collapse and rms_norm one after the other, for a row alone and in any batch.
//
// common/balancing.cuh balances comb. split holds a row in a lane, for many tokens at once; the fused
// kernels hold an element in a lane where a warp has room, because a division that waits for the one
// before it is most of their time.
// Exponentials are exp_exact: the same bytes on both backends.
//
// Build constants: STREAMS (M, 1..8), ITERATIONS, WIDTH (columns of a load, 4 or 1), PARTS
// (ceil(M D / 256), at most 256), PER_THREAD (ceil(D / 512), at most 16).
#include "common/balancing.cuh"

constexpr int THREADS = 256;
constexpr int NORM_THREADS = 512;  // as in rms_norm, whose order of sums we keep
constexpr int WARPS = NORM_THREADS / 32;
constexpr int SPLIT_ROWS = 32 / STREAMS;  // rows that a warp of hyper_split holds

// ---------------------------------------------------------------------------- one step each

// The sum of squares of a row of `count` values, on every lane of every warp; by the whole block.
template <class Sum>
__device__ __forceinline__ Sum squares_of(const float* x, int count, Sum* partial) {
    const int lane = threadIdx.x % 32;
    for (int part = threadIdx.x / 32; part < PARTS; part += blockDim.x / 32) {
        const int k = part * STEP + lane * LANE_ELEMENTS;
        Sum sum = 0;
        if (k < count) {
#pragma unroll
            for (int half = 0; half < LANE_ELEMENTS; half += 4) {
                const Floats<4> v = load_floats<4>(x + k + half);
#pragma unroll
                for (int i = 0; i < 4; ++i) sum = multiply_add(v.at[i], v.at[i], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) partial[part] = sum;
    }
    __syncthreads();
    return sum_of_parts(partial, PARTS, 1);
}

template <class Sum>
__device__ __forceinline__ void norm_scale(const float* x, float* mix, int C, int D, float eps) {
    __shared__ Sum partial[PARTS];
    const int count = STREAMS * D;
    const Sum squares = squares_of(x + (i64)blockIdx.x * count, count, partial);
    mix += (i64)blockIdx.x * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) mix[c] = scaled(mix[c], squares, count, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hyper_norm_scale(const float* x, float* mix, i32 C, i32 D, float mix_eps) {
    norm_scale<double>(x, mix, C, D, mix_eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hyper_norm_scale_f32(const float* x, float* mix, i32 C, i32 D, float mix_eps) {
    norm_scale<float>(x, mix, C, D, mix_eps);
}

extern "C" __global__ void __launch_bounds__(128)
    hyper_split(const float* mix, const float* scale, const float* base, float* pre, float* post,
                float* comb, i32 T, float eps) {
    const int lane = threadIdx.x % 32, j = lane % STREAMS;
    const i64 row = ((i64)blockIdx.x * 4 + threadIdx.x / 32) * SPLIT_ROWS + lane / STREAMS;
    mix += (row < T ? row : T - 1) * MIXES;  // lanes without a row repeat the last one
    float own[STREAMS];
    balance(mix, scale, base, eps, j, lane - j, own);
    if (row >= T || lane >= SPLIT_ROWS * STREAMS) return;
    const i64 at = row * STREAMS + j;
    pre[at] = gate(mix[j], scale[0], base[j]) + eps;
    post[at] = 2.0f * gate(mix[STREAMS + j], scale[1], base[STREAMS + j]);
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) comb[at * STREAMS + k] = own[k];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hyper_head_gate(const float* mix, const float* scale, const float* base, float* pre, i64 T,
                    float eps) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i >= T * STREAMS) return;
    pre[i] = gate(mix[i], scale[0], base[i % STREAMS]) + eps;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hyper_collapse(const float* x, const float* pre, float* y, i32 D) {
    const int column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (column >= D) return;
    x += (i64)blockIdx.x * STREAMS * D + column;
    pre += (i64)blockIdx.x * STREAMS;
    Floats<WIDTH> sum = {};
#pragma unroll
    for (int m = 0; m < STREAMS; ++m) {
        const Floats<WIDTH> stream = load_floats<WIDTH>(x + (i64)m * D);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sum.at[i] = fmaf(pre[m], stream.at[i], sum.at[i]);
    }
    store_floats(y + (i64)blockIdx.x * D + column, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hyper_post(const float* z, const float* x, const float* post, const float* comb, float* out,
               i32 D) {
    const int column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (column >= D) return;
    x += (i64)blockIdx.x * STREAMS * D + column;
    out += (i64)blockIdx.x * STREAMS * D + column;
    post += (i64)blockIdx.x * STREAMS;
    comb += (i64)blockIdx.x * STREAMS * STREAMS;
    const Floats<WIDTH> branch = load_floats<WIDTH>(z + (i64)blockIdx.x * D + column);
    Floats<WIDTH> stream[STREAMS];
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) stream[j] = load_floats<WIDTH>(x + (i64)j * D);
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) {
        Floats<WIDTH> sum;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            sum.at[i] = post[k] * branch.at[i];
#pragma unroll
            for (int j = 0; j < STREAMS; ++j)
                sum.at[i] = fmaf(comb[j * STREAMS + k], stream[j].at[i], sum.at[i]);
        }
        store_floats(out + (i64)k * D, sum);
    }
}

// ---------------------------------------------------------------------------- fused, before a block

// One block a row. Once the first warp has pre, it balances comb while the others collapse.
template <class Sum>
__device__ __forceinline__ void pre_row(const float* x, const float* mix, const float* scale,
                                        const float* base, float* pre, float* post, float* comb,
                                        float* y, int D, float mix_eps, float eps) {
    __shared__ Sum partial[PARTS];
    __shared__ float logits[MIXES], gates[STREAMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = STREAMS * D;
    x += (i64)blockIdx.x * count;
    const Sum squares = squares_of(x, count, partial);
    if (warp == 0) {
        for (int c = lane; c < MIXES; c += 32)
            logits[c] = scaled(mix[(i64)blockIdx.x * MIXES + c], squares, count, mix_eps);
        __syncwarp();
        if (lane < STREAMS) gates[lane] = gate(logits[lane], scale[0], base[lane]) + eps;
    }
    __syncthreads();
    if (warp == 0) {
        const i64 at = (i64)blockIdx.x * STREAMS;
        store_balanced(logits, scale, base, eps, comb + at * STREAMS);
        if (lane >= STREAMS) return;
        pre[at + lane] = gates[lane];
        post[at + lane] = 2.0f * gate(logits[STREAMS + lane], scale[1], base[STREAMS + lane]);
        return;
    }
    for (int column = 4 * (threadIdx.x - 32); column < D; column += 4 * (NORM_THREADS - 32)) {
        Floats<4> sum = {};
#pragma unroll
        for (int m = 0; m < STREAMS; ++m) {
            const Floats<4> stream = load_floats<4>(x + (i64)m * D + column);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum.at[i] = fmaf(gates[m], stream.at[i], sum.at[i]);
        }
        store_floats(y + (i64)blockIdx.x * D + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS, 1)
    hyper_pre(const float* x, const float* mix, const float* scale, const float* base, float* pre,
              float* post, float* comb, float* y, i32 D, float mix_eps, float eps) {
    pre_row<double>(x, mix, scale, base, pre, post, comb, y, D, mix_eps, eps);
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS, 1)
    hyper_pre_f32(const float* x, const float* mix, const float* scale, const float* base,
                  float* pre, float* post, float* comb, float* y, i32 D, float mix_eps, float eps) {
    pre_row<float>(x, mix, scale, base, pre, post, comb, y, D, mix_eps, eps);
}

// ---------------------------------------------------------------------------- fused, between blocks

// PARTS blocks share a row. Each makes the new streams of its 256 elements, multiplies them with its
// columns of fn, whose loads it issues before anything else, and leaves MIXES + 1 partial sums (the
// last of squares) in `partial`. An integer ticket tells the block that comes last that all others
// are done; it alone adds the parts, in ascending order, and finishes the row. Every block would
// compute the same, so who is last does not show. The ticket must be 0 before a launch and is 0
// after it.
//
// The last warp balances comb while the others collapse and norm: thread i has the columns i,
// i + 512, ..., as in rms_norm.
constexpr int FUSED_WARPS = WARPS + 1;
constexpr int ROUNDS = (MIXES + FUSED_WARPS) / FUSED_WARPS;  // sums of a warp, MIXES + 1 in all

struct NextBlock {
    const float *fn, *scale, *base, *gain;
    float mix_eps, eps, norm_eps;
};
struct Written {
    float *x, *pre, *post, *comb, *y;
};

// The new stream element k of a row: post * z + sum over j of comb[j, m] x[j].
__device__ __forceinline__ float new_element(const float* z, const float* x, const float* post,
                                             const float* comb, int D, int k) {
    const int m = k / D, d = k % D;
    float sum = post[m] * z[d];
#pragma unroll
    for (int j = 0; j < STREAMS; ++j) sum = fmaf(comb[j * STREAMS + m], x[(i64)j * D + d], sum);
    return sum;
}

template <class Sum>
__device__ __forceinline__ void leave_partial_sums(const float* z, const float* x,
                                                   const float* post, const float* comb,
                                                   const float* fn, float* x_next, Sum* partial,
                                                   int D, int part) {
    __shared__ __align__(16) float fresh[STEP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = STREAMS * D;
    const int k = part * STEP + lane * LANE_ELEMENTS;
    Floats<4> weights[ROUNDS][2] = {};
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int c = round * FUSED_WARPS + warp;
        if (c >= MIXES || k >= count) continue;
        weights[round][0] = load_floats<4>(fn + (i64)c * count + k);
        weights[round][1] = load_floats<4>(fn + (i64)c * count + k + 4);
    }
    if (threadIdx.x < STEP && part * STEP + (int)threadIdx.x < count) {
        const int at = part * STEP + threadIdx.x;
        fresh[threadIdx.x] = x_next[at] = new_element(z, x, post, comb, D, at);
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
        if (c > MIXES) continue;
        Sum sum = 0;
        // Lanes past the end multiply zeros, which leaves their +0 as it is.
#pragma unroll
        for (int i = 0; i < LANE_ELEMENTS; ++i) {
            const float value = v[i / 4].at[i % 4];
            sum = multiply_add(c < MIXES ? weights[round][i / 4].at[i % 4] : value, value, sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) partial[c * PARTS + part] = sum;
    }
}

// Whether this block is the last of its row to come here.
__device__ __forceinline__ bool is_last(i32* ticket) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // Behind the barrier one thread's fence covers what the whole block wrote, and read.
        __threadfence();
        last = atomicInc((u32*)ticket, PARTS - 1) == PARTS - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

__device__ __forceinline__ double add_square(double sum, float y) {
    return multiply_add(y, y, sum);
}
__device__ __forceinline__ float add_square(float sum, float y) { return fmaf(y, y, sum); }

// Whether a thread has registers for its columns of all streams, to fetch them before their gates
// are known.
constexpr bool FETCHED = PER_THREAD * STREAMS <= 32;

// What other blocks wrote is read past L1, which may hold older bytes.
template <class Sum>
__device__ __forceinline__ void finish_row(const NextBlock& next, const Written& row,
                                           const Sum* partial, int D) {
    __shared__ Sum totals[MIXES + 1], sums[WARPS];
    __shared__ float logits[MIXES], gates[STREAMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = STREAMS * D;
    float x[FETCHED ? PER_THREAD : 1][STREAMS];
    if (FETCHED && warp < WARPS) {
#pragma unroll
        for (int q = 0; q < PER_THREAD; ++q) {
            const int d = q * NORM_THREADS + threadIdx.x;
#pragma unroll
            for (int m = 0; m < STREAMS; ++m)
                x[FETCHED ? q : 0][m] = d < D ? __ldcg(row.x + (i64)m * D + d) : 0.0f;
        }
    }
    for (int c = warp; c <= MIXES; c += FUSED_WARPS) {
        Sum sum = 0;
        for (int part = lane; part < PARTS; part += 32) sum += __ldcg(partial + c * PARTS + part);
        sum = warp_sum(sum);
        if (lane == 0) totals[c] = sum;
    }
    __syncthreads();
    if (warp == WARPS) {
        for (int c = lane; c < MIXES; c += 32)
            logits[c] = scaled((float)totals[c], totals[MIXES], count, next.mix_eps);
        __syncwarp();
        if (lane < STREAMS)
            gates[lane] = gate(logits[lane], next.scale[0], next.base[lane]) + next.eps;
    }
    __syncthreads();
    float y[PER_THREAD];
    if (warp == WARPS) {
        store_balanced(logits, next.scale, next.base, next.eps, row.comb);
        if (lane < STREAMS) {
            const int at = STREAMS + lane;
            row.pre[lane] = gates[lane];
            row.post[lane] = 2.0f * gate(logits[at], next.scale[1], next.base[at]);
        }
    } else {
        Sum sum = 0;
#pragma unroll
        for (int q = 0; q < PER_THREAD; ++q) {
            const int d = q * NORM_THREADS + threadIdx.x;
            y[q] = 0.0f;
            if (d >= D) continue;
#pragma unroll
            for (int m = 0; m < STREAMS; ++m)
                y[q] = fmaf(gates[m],
                            FETCHED ? x[FETCHED ? q : 0][m] : __ldcg(row.x + (i64)m * D + d), y[q]);
            sum = add_square(sum, y[q]);
        }
        sum = warp_sum(sum);
        if (lane == 0) sums[warp] = sum;
    }
    __syncthreads();
    if (warp == WARPS) return;
    const Sum squares = warp_sum(lane < WARPS ? sums[lane] : Sum(0));
    const float mean = (float)(squares / (Sum)D);
    const float factor = 1.0f / sqrtf(mean + next.norm_eps);
#pragma unroll
    for (int q = 0; q < PER_THREAD; ++q) {
        const int d = q * NORM_THREADS + threadIdx.x;
        if (d < D) row.y[d] = next.gain[d] * (y[q] * factor);
    }
}

template <class Sum>
__device__ __forceinline__ void post_pre_norm(const float* z, const float* x, const float* post,
                                              const float* comb, const NextBlock& next, Written row,
                                              Sum* partial, i32* ticket, int D) {
    const i64 t = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    row.x += t * STREAMS * D;
    row.pre += t * STREAMS;
    row.post += t * STREAMS;
    row.comb += t * STREAMS * STREAMS;
    row.y += t * D;
    partial += t * (MIXES + 1) * PARTS;
    leave_partial_sums(z + t * D, x + t * STREAMS * D, post + t * STREAMS,
                       comb + t * STREAMS * STREAMS, next.fn, row.x, partial, D, part);
    if (is_last(ticket + t)) finish_row(next, row, partial, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, 1)
    hyper_post_pre_norm(const float* z, const float* x, const float* post, const float* comb,
                        const float* fn, const float* scale, const float* base, const float* gain,
                        float* x_next, float* pre, float* post_next, float* comb_next, float* y,
                        double* partial, i32* ticket, i32 D, float mix_eps, float eps,
                        float norm_eps) {
    post_pre_norm(z, x, post, comb, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                  {x_next, pre, post_next, comb_next, y}, partial, ticket, D);
}

extern "C" __global__ void __launch_bounds__(32 * FUSED_WARPS, 1)
    hyper_post_pre_norm_f32(const float* z, const float* x, const float* post, const float* comb,
                            const float* fn, const float* scale, const float* base,
                            const float* gain, float* x_next, float* pre, float* post_next,
                            float* comb_next, float* y, float* partial, i32* ticket, i32 D,
                            float mix_eps, float eps, float norm_eps) {
    post_pre_norm(z, x, post, comb, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                  {x_next, pre, post_next, comb_next, y}, partial, ticket, D);
}

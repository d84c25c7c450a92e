// gated_delta: the pieces of a gated DeltaNet layer between its projections
//
//   gated_delta_conv   y[t,c] = silu(sum_j w[c,j] h[c, t+j]), h = the C-1 older inputs, then u
//   gated_delta_tail   after[c,:] = the newest C-1 of the older inputs and u
//   gated_delta_unit   y = x * gain / sqrt(sum x^2 + eps) for each head's lanes
//   gated_delta_decay  factor = exp(-e^a_log softplus(a + dt_bias)), beta = sigmoid(b)
//   gated_delta_scan   per step: S = factor S; d = beta (v - S k); S += d k^T; y = S q
//
//   u, y f32 [T, D]    w f32 [D, C]    state, after f32 [D, C-1], oldest first
//   x, y f32 [T, G, K], rows of x x_stride apart
//   a, b, factor, beta f32 [T, H]    a_log, dt_bias f32 [H]
//   q, k f32 [T, G, K]    v f32 [T, H, D]    states f32 [H, D, K]    y f32 [T, H, D]
//   value head h reads key head h / (H/G)
//
// conv: a thread an element, one fmaf chain over the taps in ascending j. unit: a warp a head, lane
// l adds squares l, l + 32, ..., then the butterfly. decay: f64, one rounding each. scan: a warp a
// column of the state, lane l keeps lanes l, l + 32, ... of it in registers; both dots are a lane's
// fmaf chain and the butterfly; steps follow each other whatever T is. So the state after t steps
// depends on those steps alone: a prefix scanned again gives the same bytes, and verifying T rows
// those of T single steps.
#include "common/math.cuh"
#include "common/reduce.cuh"

#ifndef WIDTH
#define WIDTH 1  // lanes of a key; builds of the scan alone set it
#endif

constexpr int THREADS = 256;
constexpr int WARPS = 4;  // of a scan block: neighbouring columns

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_delta_conv(const float* u, const float* w, const float* state, float* y, i32 D, i32 C) {
    const i32 t = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
    if (c >= D) return;
    float sum = 0.0f;
    for (i32 j = 0; j < C; ++j) {
        const i32 at = t + j - (C - 1);
        const float input = at < 0 ? state[(i64)c * (C - 1) + at + C - 1] : u[(i64)at * D + c];
        sum = fmaf(w[(i64)c * C + j], input, sum);
    }
    y[(i64)t * D + c] = sum / (1.0f + exp_exact(-sum));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_delta_tail(const float* u, const float* state, float* after, i32 T, i32 D, i32 taps) {
    const i32 c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= D) return;
    for (i32 j = 0; j < taps - 1; ++j) {
        const i32 at = T + j - (taps - 1);
        after[(i64)c * (taps - 1) + j] = at < 0 ? state[(i64)c * (taps - 1) + at + taps - 1]
                                                : u[(i64)at * D + c];
    }
}

extern "C" __global__ void __launch_bounds__(32)
    gated_delta_unit(const float* x, float* y, i32 G, i32 K, i64 x_stride, float gain, float eps) {
    const i32 t = blockIdx.x, g = blockIdx.y;
    const float* from = x + t * x_stride + (i64)g * K;
    float* to = y + ((i64)t * G + g) * K;
    float sum = 0.0f;
    for (i32 i = threadIdx.x; i < K; i += 32) sum = fmaf(from[i], from[i], sum);
    const float factor = gain / sqrtf(warp_sum(sum) + eps);
    for (i32 i = threadIdx.x; i < K; i += 32) to[i] = from[i] * factor;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_delta_decay(const float* a, const float* b, const float* a_log, const float* dt_bias,
                      float* factor, float* beta, i32 T, i32 H) {
    const i32 i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= T * H) return;
    const double x = (double)a[i] + (double)dt_bias[i % H];
    const double softplus = fmax(x, 0.0) + log1p_f64(exp_f64(-fabs(x)));
    factor[i] = (float)exp_f64(-exp_f64(a_log[i % H]) * softplus);
    const double e = exp_f64(-fabs((double)b[i]));
    beta[i] = (float)((b[i] < 0.0f ? e : 1.0) / (1.0 + e));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gated_delta_scan(const float* q, const float* k, const float* v, const float* factor,
                     const float* beta, const float* state, float* y, float* after, i32 T, i32 G,
                     i32 H, i32 D, i32 K, i64 v_stride) {
    constexpr int LANES = (WIDTH + 31) / 32;
    const i32 h = blockIdx.x, d = blockIdx.y * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (d >= D) return;  // a whole warp; no barrier follows
    const i64 column = ((i64)h * D + d) * K;
    float s[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i)
        s[i] = lane + 32 * i < WIDTH ? state[column + lane + 32 * i] : 0;
    for (i32 t = 0; t < T; ++t) {
        const i64 key = ((i64)t * G + h / (H / G)) * K + lane;
        float own[LANES], dot = 0.0f;
        const float decay = factor[(i64)t * H + h];
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            own[i] = lane + 32 * i < WIDTH ? k[key + 32 * i] : 0.0f;
            s[i] *= decay;
            dot = fmaf(s[i], own[i], dot);
        }
        const float error = v[t * v_stride + (i64)h * D + d] - warp_sum(dot);
        const float delta = beta[(i64)t * H + h] * error;
        dot = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            s[i] = fmaf(own[i], delta, s[i]);
            dot = fmaf(s[i], lane + 32 * i < WIDTH ? q[key + 32 * i] : 0.0f, dot);
        }
        dot = warp_sum(dot);
        if (lane == 0) y[((i64)t * H + h) * D + d] = dot;
    }
#pragma unroll
    for (int i = 0; i < LANES; ++i)
        if (lane + 32 * i < WIDTH) after[column + lane + 32 * i] = s[i];
}

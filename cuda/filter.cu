// filter: temperature and filters of logit rows, and draws from what they leave
//
//   x f32 [T, V]    mx, th, z f32 [T]    e_i = exp((x_i - mx) / temp), in (0, 1]
//   filter_stats           mx = max x; th = the least kept e; z = sum of e_i >= th
//   filter_gather          p[t] = e/z of token ids[t] in row t where e >= th, else 0
//   filter_gumbel          ids[t] = argmax of x_i / temp - ln(-ln u_i) over kept i; event + t
//   filter_residual_dense  ids[t] = a draw from max(0, p - q), both filtered rows
//   filter_residual_sparse the same, q given for K tokens; a token given twice adds
//
// Everything computes e with the same function, f32: a row judged by its own stats keeps what the
// stats counted. th: 24 bisections of [0, 1]; a middle goes into the kept side while
// count(e >= middle) >= top_k, or mass(e >= middle) >= top_p of the whole: the two filters keep the
// intersection, and ties with the boundary all stay. Then min_p, which e is already relative to.
// top_k 0, top_p 1, min_p 0 are off.
//
// Sums of masses are f64: a thread's strided share, then block_sum. A residual draw walks tokens in
// ascending order: a thread sums a contiguous chunk, one thread finds the chunk, then the token: the
// first with a residual at which the running sum reaches u of the total; without any residual, the
// largest logit of x. A row of which nothing is kept (stats of another row) gives id -1. NaN is
// never kept, counts as no residual, and loses to every number.
//
// Random words are Philox 4x32-10 of the key seed and the counters (i / 4, event) for token i's word
// i % 4, and (0xfffffffd, event) word 0 for a residual. u = (f32(word) + 1) 2^-32, clamped below 1.
#include "common/math.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 512;
constexpr u32 RESIDUAL = 0xfffffffdu;

__device__ __forceinline__ u32 philox_word(u64 seed, u32 c0, u32 c1, int word) {
    u32 x[4] = {c0, c1, 0, 0}, low = (u32)seed, high = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 a = (u64)0xd2511f53u * x[0], b = (u64)0xcd9e8d57u * x[2];
        const u32 next[4] = {(u32)(b >> 32) ^ x[1] ^ low, (u32)b, (u32)(a >> 32) ^ x[3] ^ high,
                             (u32)a};
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = next[i];
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    return word == 0 ? x[0] : word == 1 ? x[1] : word == 2 ? x[2] : x[3];
}

__device__ __forceinline__ double open_uniform(u32 word) {
    return fminf(((float)word + 1.0f) * 0x1p-32f, 0x1.fffffep-1f);
}

// ln of w > 0, from log1p_f64, which is the same on both backends.
__device__ __forceinline__ double ln(double w) {
    return w >= 1.0 ? log1p_f64(w - 1.0) : -log1p_f64((1.0 - w) / w);
}

__device__ __forceinline__ float share(float x, float mx, float temp) {
    return exp_exact((x - mx) / temp);
}

// The filtered probability, in f64 from f32 parts.
__device__ __forceinline__ double kept(float x, float mx, float th, float z, float temp) {
    const float e = share(x, mx, temp);
    return e >= th ? (double)e / (double)z : 0.0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    filter_stats(const float* x, float* mx, float* th, float* z, i32 V, float temp, i32 top_k,
                 float top_p, float min_p) {
    __shared__ double sums[32];
    __shared__ float tops[32];
    __shared__ i32 counts[32];
    // The loops are not unrolled: across the call inside a division, copies would spill.
    const float* row = x + (i64)blockIdx.x * V;
    float top = NAN_F32;
#pragma unroll 1
    for (i32 i = threadIdx.x; i < V; i += THREADS) top = fmaxf(top, row[i]);
    top = block_max(top, tops);

    double mass = 0.0;
#pragma unroll 1
    for (i32 i = threadIdx.x; i < V; i += THREADS) mass += share(row[i], top, temp);
    const double all = block_sum(mass, sums);
    const bool by_count = top_k > 0 && top_k < V, by_mass = top_p < 1.0f;
    float low = 0.0f, high = 1.0f;
    if (by_count || by_mass)
#pragma unroll 1
        for (int step = 0; step < 24; ++step) {
            const float middle = 0.5f * (low + high);
            i32 count = 0;
            mass = 0.0;
#pragma unroll 1
            for (i32 i = threadIdx.x; i < V; i += THREADS) {
                const float e = share(row[i], top, temp);
                if (e >= middle) {
                    ++count;
                    mass += e;
                }
            }
            count = block_sum(count, counts);
            mass = block_sum(mass, sums);
            const bool enough = (by_count && count >= top_k) ||
                                (by_mass && mass >= (double)top_p * all);
            if (enough)
                low = middle;
            else
                high = middle;
        }
    low = fmaxf(low, min_p);
    mass = 0.0;
#pragma unroll 1
    for (i32 i = threadIdx.x; i < V; i += THREADS) {
        const float e = share(row[i], top, temp);
        if (e >= low) mass += e;
    }
    mass = block_sum(mass, sums);
    if (threadIdx.x == 0) {
        mx[blockIdx.x] = top;
        th[blockIdx.x] = low;
        z[blockIdx.x] = (float)mass;
    }
}

extern "C" __global__ void __launch_bounds__(32)
    filter_gather(const float* x, const float* mx, const float* th, const float* z, const i32* ids,
                  float* p, i32 T, i32 V, float temp) {
    const i32 t = blockIdx.x * 32 + threadIdx.x;
    if (t >= T) return;
    const i32 id = ids[t];
    const bool known = id >= 0 && id < V;
    p[t] = known ? (float)kept(x[(i64)t * V + id], mx[t], th[t], z[t], temp) : NAN_F32;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    filter_gumbel(const float* x, const float* mx, const float* th, const float* z, i32* ids, i32 V,
                  float temp, i64 seed, i64 event) {
    __shared__ Best scratch[32];
    const i32 t = blockIdx.x;
    const float* row = x + (i64)t * V;
    Best best = {NAN_F32, 2147483647};
    for (i32 i = threadIdx.x; i < V; i += THREADS) {
        float score = -3.4e38f;
        if (share(row[i], mx[t], temp) >= th[t]) {
            const double u = open_uniform(philox_word(seed, i >> 2, (u32)(event + t), i & 3));
            score = (float)((double)row[i] / (double)temp - ln(log1p_f64((1.0 - u) / u)));
        }
        best = reduce::ArgMax::fold(best, {score, i});
    }
    best = block_argmax(best.value, best.index, scratch);
    if (threadIdx.x == 0) ids[t] = z[t] > 0.0f && best.value > -3.4e38f ? best.index : -1;
}

// A draw from the residuals r(i) >= 0 of one row.
template <class Residual>
__device__ __forceinline__ void draw(const Residual& r, const float* row, i32 V, u64 seed,
                                     u32 event, i32* id, double* sums, Best* scratch) {
    const i32 chunk = (V + THREADS - 1) / THREADS;
    const i32 begin = min((i32)threadIdx.x * chunk, V), end = min(begin + chunk, V);
    double sum = 0.0;
    Best best = {NAN_F32, 2147483647};
    for (i32 i = begin; i < end; ++i) {
        sum += r(i);
        best = reduce::ArgMax::fold(best, {row[i], i});
    }
    sums[threadIdx.x] = sum;
    best = block_argmax(best.value, best.index, scratch);
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0.0;
    for (int part = 0; part < THREADS; ++part) total += sums[part];
    if (!(total > 0.0)) {
        *id = best.index;
        return;
    }
    const double target = open_uniform(philox_word(seed, RESIDUAL, event, 0)) * total;
    double running = 0.0;
    i32 found = -1;
    for (int part = 0; part < THREADS; ++part) {
        // A chunk that cannot reach the target is passed by; its own last token stays a fallback.
        const bool reaches = running + sums[part] >= target;
        if (!reaches && part * chunk + chunk < V) {
            running += sums[part];
            continue;
        }
        for (i32 i = part * chunk; i < min((part + 1) * chunk, V); ++i) {
            const double mass = r(i);
            running += mass;
            if (!(mass > 0.0)) continue;
            found = i;
            if (running >= target) {
                *id = i;
                return;
            }
        }
    }
    // Rounding may leave the target a hair above the whole: the last token with a residual.
    for (i32 i = V - 1; found < 0 && i >= 0; --i)
        if (r(i) > 0.0) found = i;
    *id = found;
}

struct Dense {
    const float *x, *q;
    float mx, th, z, q_mx, q_th, q_z, temp;
    __device__ __forceinline__ double operator()(i32 i) const {
        const double excess = kept(x[i], mx, th, z, temp) - kept(q[i], q_mx, q_th, q_z, temp);
        return excess > 0.0 ? excess : 0.0;
    }
};

struct Sparse {
    const float *x, *q;
    const i32* ids;
    i32 K;
    float mx, th, z, temp;
    __device__ __forceinline__ double operator()(i32 i) const {
        double excess = kept(x[i], mx, th, z, temp);
        for (i32 j = 0; j < K; ++j)
            if (ids[j] == i) excess -= (double)q[j];
        return excess > 0.0 ? excess : 0.0;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    filter_residual_dense(const float* x, const float* mx, const float* th, const float* z,
                          const float* q, const float* q_mx, const float* q_th, const float* q_z,
                          i32* ids, i32 V, float temp, i64 seed, i64 event) {
    __shared__ double sums[THREADS];
    __shared__ Best scratch[32];
    const i32 t = blockIdx.x;
    const float* row = x + (i64)t * V;
    const Dense r = {row, q + (i64)t * V, mx[t], th[t], z[t], q_mx[t], q_th[t], q_z[t], temp};
    draw(r, row, V, seed, (u32)(event + t), ids + t, sums, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    filter_residual_sparse(const float* x, const float* mx, const float* th, const float* z,
                           const i32* candidates, const float* q, i32* ids, i32 V, i32 K,
                           float temp, i64 seed, i64 event) {
    __shared__ double sums[THREADS];
    __shared__ Best scratch[32];
    const i32 t = blockIdx.x;
    const float* row = x + (i64)t * V;
    const Sparse r = {row, q + (i64)t * K, candidates + (i64)t * K, K, mx[t], th[t], z[t], temp};
    draw(r, row, V, seed, (u32)(event + t), ids + t, sums, scratch);
}

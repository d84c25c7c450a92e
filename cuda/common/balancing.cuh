// comb of a hyper-connection, made nearly doubly stochastic from the scaled mixes of a token; and the
// coefficients that an earlier launch left open.
//
// comb: z = mix * scale[2] + base; softmax of each row j, plus eps; then columns divided by (their
// sum + eps); then iterations - 1 times rows, then columns. Sums run ascending. A warp holds a row in
// a lane, or an element in a lane: the bytes are the same.
//
// Build constants: STREAMS (M, 1..8), ITERATIONS.
#pragma once

#include "common/copy.cuh"
#include "common/mixing.cuh"

static_assert(ITERATIONS >= 1, "comb needs its first column step");

__device__ __forceinline__ float total_of(const float (&row)[STREAMS]) {
    float sum = row[0];
#pragma unroll
    for (int k = 1; k < STREAMS; ++k) sum += row[k];
    return sum;
}

__device__ __forceinline__ void scale_rows(float (&row)[STREAMS], float eps) {
    const float sum = total_of(row) + eps;
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) row[k] /= sum;
}

// Lane `first` + j holds row j of the matrix.
__device__ __forceinline__ void scale_columns(float (&row)[STREAMS], int first, float eps) {
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) {
        float sum = __shfl_sync(FULL_WARP, row[k], first);
#pragma unroll
        for (int j = 1; j < STREAMS; ++j) sum += __shfl_sync(FULL_WARP, row[k], first + j);
        row[k] /= sum + eps;
    }
}

// Row j of comb from a row's scaled mixes; by a whole warp.
__device__ __forceinline__ void balance(const float* mix, const float* scale, const float* base,
                                        float eps, int j, int first, float (&row)[STREAMS]) {
    const int at = (2 + j) * STREAMS;
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) row[k] = fmaf(mix[at + k], scale[2], base[at + k]);
    float largest = row[0];
#pragma unroll
    for (int k = 1; k < STREAMS; ++k) largest = fmaxf(largest, row[k]);
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) row[k] = exp_exact(row[k] - largest);
    const float sum = total_of(row);
#pragma unroll
    for (int k = 0; k < STREAMS; ++k) row[k] = row[k] / sum + eps;
    scale_columns(row, first, eps);
    for (int i = 1; i < ITERATIONS; ++i) {
        scale_rows(row, eps);
        scale_columns(row, first, eps);
    }
}

// Whether a warp has a lane for every element of comb.
constexpr bool SPREAD = STREAMS * STREAMS <= 32;

// The sum of M elements of comb, every `stride`-th lane from `first` on, ascending.
__device__ __forceinline__ float spread_total(float element, int first, int stride) {
    float sum = __shfl_sync(FULL_WARP, element, first);
#pragma unroll
    for (int k = 1; k < STREAMS; ++k) sum += __shfl_sync(FULL_WARP, element, first + k * stride);
    return sum;
}

// Element i of comb on lane i, balanced from the first division by columns on. Quick: without checks of
// the range; then `safe` says whether all that was divided lay in it.
template <bool Quick>
__device__ __forceinline__ float balanced_element(float element, int row, int column, float eps,
                                                  bool& safe) {
    float least = element, most = 0.0f;
#pragma unroll 1
    for (int step = 0; step < 2 * ITERATIONS - 1; ++step) {
        const bool by_column = step % 2 == 0;
        const float sum = spread_total(element, by_column ? column : row, by_column ? STREAMS : 1) +
                          eps;
        element = Quick ? divided_in_range(element, sum) : element / sum;
        least = fminf(least, element);
        most = fmaxf(most, sum);
    }
    // A sum is at least each of its elements; a NaN is not above the limit.
    safe = least >= 0x1p-60f && element >= 0x1p-60f && most <= 0x1p60f;
    return element;
}

// Element (j, k) of comb on lane j M + k, with the bytes of `balance`; by a whole warp, whose lanes
// past the last element repeat it.
__device__ __forceinline__ float balance_spread(const float* mix, const float* scale,
                                                const float* base, float eps, int lane) {
    const int i = lane < STREAMS * STREAMS ? lane : STREAMS * STREAMS - 1;
    const int row = i - i % STREAMS, column = i % STREAMS, at = 2 * STREAMS + i;
    const float z = fmaf(mix[at], scale[2], base[at]);
    float largest = __shfl_sync(FULL_WARP, z, row);
#pragma unroll
    for (int k = 1; k < STREAMS; ++k) largest = fmaxf(largest, __shfl_sync(FULL_WARP, z, row + k));
    float element = exp_exact(z - largest);
    element = element / spread_total(element, row, 1) + eps;
    bool safe;
    const float quick = balanced_element<true>(element, row, column, eps, safe);
    if (__ballot_sync(FULL_WARP, safe) == FULL_WARP) return quick;
    return balanced_element<false>(element, row, column, eps, safe);
}

// comb of a row from its scaled mixes, to memory; by a whole warp.
__device__ __forceinline__ void store_balanced(const float* mix, const float* scale,
                                               const float* base, float eps, float* comb) {
    const int lane = threadIdx.x % 32;
    if constexpr (SPREAD) {
        const float element = balance_spread(mix, scale, base, eps, lane);
        if (lane < STREAMS * STREAMS) comb[lane] = element;
    } else {
        const int j = lane % STREAMS;
        float own[STREAMS];
        balance(mix, scale, base, eps, j, lane - j, own);
        if (lane >= STREAMS) return;
#pragma unroll
        for (int k = 0; k < STREAMS; ++k) comb[j * STREAMS + k] = own[k];
    }
}

// Scaled mixes [T, C] that hyper_step left open, what they are weighed with, and the coefficients
// post [T, M] and comb [T, M, M] that a launch with other work makes of them.
struct Open {
    const float *mix, *scale, *base;
    float *post, *comb;
    float eps;

    // What no kernel writes; it may come before the mixes are there.
    __device__ __forceinline__ void prefetch() const {
        prefetch_l2(scale);
        prefetch_l2(base);
    }
    // By a block of so many warps, a warp a token: the bytes of hyper_split.
    __device__ __forceinline__ void close(int tokens, int warps) const {
        for (int t = threadIdx.x / 32; t < tokens; t += warps) {
            close_comb(t);
            close_post(t);
        }
    }
    // Halves of it, by a warp each.
    __device__ __forceinline__ void close_comb(int t) const {
        store_balanced(mix + t * MIXES, scale, base, eps, comb + t * STREAMS * STREAMS);
    }
    __device__ __forceinline__ void close_post(int t) const {
        const int lane = threadIdx.x % 32;
        if (lane >= STREAMS) return;
        const float* const own = mix + t * MIXES;
        const int at = STREAMS + lane;
        post[t * STREAMS + lane] = 2.0f * gate(own[at], scale[1], base[at]);
    }
};

// FP8 weights in 128 x 128 blocks for the walk of common/gemv.cuh: codes, and a scale for each block.
#pragma once

#include "common/gemv.cuh"
#include "common/probe.cuh"

struct Fp8Weights {
    using Element = u8;
    const u8* elements;
    const float* scales;
    int rows, columns;  // of elements; of scales

    static constexpr bool SCALED = true;
    using Raw = uint4;

    template <int Apart>
    static __device__ __forceinline__ void copy(uint4* to, const u8* from, bool there) {
        cp_async16_or_zero(to, from, there);
    }
    static __device__ __forceinline__ void decode(Raw raw, int j, u32& low, u32& high) {
        const u32 word = j == 0 ? raw.x : j == 1 ? raw.y : j == 2 ? raw.z : raw.w;
        low = e4m3x2_to_bf16x2<0>(word);
        high = e4m3x2_to_bf16x2<2>(word);
    }
    __device__ __forceinline__ const u8* row_at(int row, int K) const {
        return elements + (i64)min(row, rows - 1) * K;
    }
    __device__ __forceinline__ int rows_down(int row, int n) const {
        return min(n, max(0, rows - 1 - row));
    }
    // The rows of a set lie in one block of 128 x 128.
    __device__ __forceinline__ float scale_of(int row, int group) const {
        const i64 at = (i64)(row >> 7) * columns + group;
        if (row % 128 == 0) PROBE("scale", at, scales[at]);
        return scales[at];
    }
};

// The walk of a few rows of x past a few rows of w, for kernels that add in the order of
// common/parts.cuh: equal numbers give equal bytes, whatever they are stored in, however many rows
// are walked at once, and in whichever of those kernels.
//
// A warp walks WARP_ROWS rows of w past all ROWS rows of x, so that each weight is loaded once, and
// issues the loads of BATCH steps before it uses the first. None of the three shows in the bytes.
//
// Build constants: ROWS, WARP_ROWS, BATCH.
#pragma once

#include "common/convert.cuh"
#include "common/math.cuh"
#include "common/parts.cuh"

constexpr int PIECE = 4;  // elements decoded together; more would cost registers

struct F32Weights {
    const float* w;
    struct Chunk {
        uint4 half[2];
    };
    __device__ __forceinline__ Chunk load(i64 at) const {
        return {{load16_once(w + at), load16_once(w + at + PIECE)}};
    }
    static __device__ __forceinline__ void decode(const Chunk& chunk, int piece,
                                                  float (&v)[PIECE]) {
        const uint4 raw = chunk.half[piece];
        v[0] = __uint_as_float(raw.x);
        v[1] = __uint_as_float(raw.y);
        v[2] = __uint_as_float(raw.z);
        v[3] = __uint_as_float(raw.w);
    }
};

struct Bf16Weights {
    const bf16* w;
    using Chunk = uint4;
    __device__ __forceinline__ Chunk load(i64 at) const { return load16_once(w + at); }
    static __device__ __forceinline__ void decode(const Chunk& chunk, int piece,
                                                  float (&v)[PIECE]) {
        const u32 low = piece ? chunk.z : chunk.x, high = piece ? chunk.w : chunk.y;
        v[0] = __uint_as_float(low << 16);
        v[1] = __uint_as_float(low & 0xffff0000u);
        v[2] = __uint_as_float(high << 16);
        v[3] = __uint_as_float(high & 0xffff0000u);
    }
};

// Rows of x, f32 or bf16, anywhere in memory.
struct F32Rows {
    const float* at[ROWS];
    __device__ __forceinline__ void load(int m, int k, float (&v)[PIECE]) const {
        const Floats<PIECE> four = load_floats<PIECE>(at[m] + k);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) v[i] = four.at[i];
    }
};
struct Bf16Rows {
    const bf16* at[ROWS];
    __device__ __forceinline__ void load(int m, int k, float (&v)[PIECE]) const {
        const uint2 four = *reinterpret_cast<const uint2*>(at[m] + k);
        v[0] = __uint_as_float(four.x << 16);
        v[1] = __uint_as_float(four.x & 0xffff0000u);
        v[2] = __uint_as_float(four.y << 16);
        v[3] = __uint_as_float(four.y & 0xffff0000u);
    }
};

// Adds one step's 8 elements, from k on, to every sum.
template <class Weights, class Rows, class Sum>
__device__ __forceinline__ void add_step(const typename Weights::Chunk (&chunk)[WARP_ROWS],
                                         const Rows& rows, int k, Sum (&sum)[WARP_ROWS][ROWS]) {
#pragma unroll
    for (int piece = 0; piece < LANE_ELEMENTS / PIECE; ++piece) {
        float w[WARP_ROWS][PIECE];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) Weights::decode(chunk[r], piece, w[r]);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            float v[PIECE];
            rows.load(m, k + piece * PIECE, v);
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
                for (int i = 0; i < PIECE; ++i) sum[r][m] = multiply_add(w[r][i], v[i], sum[r][m]);
        }
    }
}

// Adds this lane's elements of the steps from `begin` to `end` to every sum. Rows of w past N repeat
// the last one.
template <class Weights, class Rows, class Sum>
__device__ __forceinline__ void walk(const Weights& weights, const Rows& rows, int first_row, int N,
                                     int K, int begin, int end, Sum (&sum)[WARP_ROWS][ROWS]) {
    for (int k = begin + threadIdx.x % 32 * LANE_ELEMENTS; k < end; k += BATCH * STEP) {
        typename Weights::Chunk chunk[BATCH][WARP_ROWS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            // Past the end the loads repeat the first ones, which is cheaper than not loading.
            const int here = k + b * STEP < end ? k + b * STEP : k;
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
                chunk[b][r] = weights.load((i64)min(first_row + r, N - 1) * K + here);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int here = k + b * STEP;
            if (here < end) add_step<Weights>(chunk[b], rows, here, sum);
        }
    }
}

// One of a warp's sums over its lanes.
template <class Sum>
struct LaneSum {
    Sum sum;
    int r, m;     // of which rows
    bool keeper;  // whether there are such rows, and no lane below has their sum too
};
constexpr int ROW_PAIRS = WARP_ROWS * ROWS;
constexpr int HELD_PAIRS = ROW_PAIRS <= 1    ? 1
                           : ROW_PAIRS <= 2  ? 2
                           : ROW_PAIRS <= 4  ? 4
                           : ROW_PAIRS <= 8  ? 8
                           : ROW_PAIRS <= 16 ? 16
                                             : 32;
// The lane that keeps the sum of row r of w and row m of x.
__device__ __forceinline__ int keeper_of(int r, int m) {
    return (m * WARP_ROWS + r) * (32 / HELD_PAIRS);
}

// All of them at once: halves of the lanes exchange halves of the sums, so that the bytes are those of
// warp_sum, for a fraction of its instructions.
template <class Sum>
__device__ __forceinline__ LaneSum<Sum> warp_sums(const Sum (&sum)[WARP_ROWS][ROWS]) {
    static_assert(ROW_PAIRS <= 32, "a lane keeps at most one sum; lower WARP_ROWS");
    Sum held[HELD_PAIRS];
#pragma unroll
    for (int i = 0; i < HELD_PAIRS; ++i)
        held[i] = i < ROW_PAIRS ? sum[i % WARP_ROWS][i / WARP_ROWS] : Sum(0);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const int half = offset * HELD_PAIRS / 32;  // 0: every lane has one sum already
        const bool upper = lane & offset;
#pragma unroll
        for (int i = 0; i < (half ? half : 1); ++i) {
            const Sum mine = upper ? held[i + half] : held[i];
            const Sum theirs = upper ? held[i] : held[i + half];
            held[i] = mine + __shfl_xor_sync(FULL_WARP, theirs, offset);
        }
    }
    const int i = lane / (32 / HELD_PAIRS);
    return {held[0], i % WARP_ROWS, i / WARP_ROWS, i < ROW_PAIRS && lane % (32 / HELD_PAIRS) == 0};
}

// From here on lanes that are Offset apart and less fold what they hold: of several sums each keeps a half.
template <int Offset, int Count, class Sum>
__device__ __forceinline__ Sum fold_lanes(const Sum (&held)[Count]) {
    constexpr int HALF = Count > 1 ? Count / 2 : 1;
    const bool upper = threadIdx.x & Offset;
    Sum kept[HALF];
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const Sum low = held[i], high = held[Count > 1 ? i + HALF : i];
        kept[i] = (upper ? high : low) + __shfl_xor_sync(FULL_WARP, upper ? low : high, Offset);
    }
    if constexpr (Offset > 1)
        return fold_lanes<Offset / 2>(kept);
    else
        return kept[0];
}

// warp_sums for a kernel in which its loops put what lanes hold into memory; here nothing has an index.
template <class Sum>
__device__ __forceinline__ LaneSum<Sum> warp_sums_by_type(const Sum (&sum)[WARP_ROWS][ROWS]) {
    static_assert(ROW_PAIRS <= 32, "a lane keeps at most one sum; lower WARP_ROWS");
    Sum held[HELD_PAIRS];
#pragma unroll
    for (int i = 0; i < HELD_PAIRS; ++i)
        held[i] = i < ROW_PAIRS ? sum[i % WARP_ROWS][i / WARP_ROWS] : Sum(0);
    const int lane = threadIdx.x % 32, i = lane / (32 / HELD_PAIRS);
    return {fold_lanes<16>(held), i % WARP_ROWS, i / WARP_ROWS,
            i < ROW_PAIRS && lane % (32 / HELD_PAIRS) == 0};
}

// The sum as a float, rounded once. Any NaN comes out as the one that the device itself makes, so
// that its bits do not tell in which order a CPU took the operands.
template <class Sum>
__device__ __forceinline__ float to_f32(Sum sum) {
    return sum == sum ? (float)sum : NAN_F32;
}

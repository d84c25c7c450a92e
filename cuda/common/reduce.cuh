// Reductions in one fixed order: an xor butterfly in each warp, then the same butterfly over the
// warps' partial values. Every thread gets the result. Reduce only through these: the host's fast
// branch computes a whole warp or block at once in the same order, hence to the same bits.
//
// All need whole warps: a block size that is a multiple of 32, and every thread calling. `scratch`
// is 32 elements of shared memory that belong to the caller. A block reduction has one barrier
// before the partial values are read and one after, so on return scratch may be used again at once,
// also for the next reduction; its content is unspecified. If other threads may still be reading
// scratch for another purpose, the caller puts a barrier before the call.
//
// Maximum: NaN loses to any number and +0 beats -0; NaN comes out only when every value is NaN.
#pragma once

#include "common/math.cuh"

constexpr u32 FULL_WARP = 0xffffffffu;

// A value and where it was found.
struct Best {
    float value;
    i32 index;
};

namespace reduce {

__device__ __forceinline__ i32 thread_of_block() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ i32 warps_of_block() {
    return (i32)(blockDim.x * blockDim.y * blockDim.z) >> 5;
}

template <class Value>
struct Sum {
    static __device__ __forceinline__ Value empty() { return Value(0); }
    static __device__ __forceinline__ Value fold(Value a, Value b) { return a + b; }
};

template <class Value>
struct Max;
template <>
struct Max<float> {
    static __device__ __forceinline__ float empty() { return NAN_F32; }
    static __device__ __forceinline__ float fold(float a, float b) { return fmaxf(a, b); }
};
template <>
struct Max<double> {
    static __device__ __forceinline__ double empty() { return NAN_F64; }
    static __device__ __forceinline__ double fold(double a, double b) { return fmax(a, b); }
};
template <>
struct Max<i32> {
    static __device__ __forceinline__ i32 empty() { return -2147483647 - 1; }
    static __device__ __forceinline__ i32 fold(i32 a, i32 b) { return a < b ? b : a; }
};

// Larger value first, then lower index; a number beats NaN. A total order, so any order of folding
// gives the same pair.
struct ArgMax {
    static __device__ __forceinline__ Best empty() { return {NAN_F32, 2147483647}; }
    static __device__ __forceinline__ Best fold(Best a, Best b) {
        const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        if (a_is_nan != b_is_nan) return a_is_nan ? b : a;
        if (!a_is_nan && a.value != b.value) return a.value > b.value ? a : b;
        return a.index <= b.index ? a : b;
    }
};

template <class Value>
__device__ __forceinline__ Value from_lane_xor(Value value, i32 offset) {
    return __shfl_xor_sync(FULL_WARP, value, offset);
}
__device__ __forceinline__ Best from_lane_xor(Best best, i32 offset) {
    return {__shfl_xor_sync(FULL_WARP, best.value, offset),
            __shfl_xor_sync(FULL_WARP, best.index, offset)};
}

template <class Fold, class Value>
__device__ __forceinline__ Value over_warp(Value value) {
#ifdef DSV4_HOST
    host::require_full_warps(false);
#endif
#ifdef DSV4_HOST_FAST
    host::fold_warp_at_once<Fold>(value, __FILE__, __LINE__);
#else
    for (i32 offset = 16; offset > 0; offset >>= 1)
        value = Fold::fold(value, from_lane_xor(value, offset));
#endif
    return value;
}

template <class Fold, class Value>
__device__ __forceinline__ Value over_block(Value value, Value* scratch) {
#ifdef DSV4_HOST
    host::require_full_warps(true);
#endif
#ifdef DSV4_HOST_FAST
    host::fold_block_at_once<Fold>(value, __FILE__, __LINE__);
    return value;
#else
    value = over_warp<Fold>(value);
    const i32 thread = thread_of_block();
    const i32 lane = thread & 31;
    if (lane == 0) scratch[thread >> 5] = value;
    __syncthreads();
    // Every warp folds the partial values itself: the same bits, and no barrier for a broadcast.
    value = over_warp<Fold>(lane < warps_of_block() ? scratch[lane] : Fold::empty());
    __syncthreads();
    return value;
#endif
}

}  // namespace reduce

// Sum over the warp, on every lane. For float, double and i32.
template <class Value>
__device__ __forceinline__ Value warp_sum(Value value) {
    return reduce::over_warp<reduce::Sum<Value>>(value);
}

// Maximum over the warp, on every lane. For float, double and i32.
template <class Value>
__device__ __forceinline__ Value warp_max(Value value) {
    return reduce::over_warp<reduce::Max<Value>>(value);
}

// Largest value of the warp and its index, ties to the lowest index, on every lane.
__device__ __forceinline__ Best warp_argmax(float value, i32 index) {
    return reduce::over_warp<reduce::ArgMax>(Best{value, index});
}

// Sum over the block, on every thread; scratch: 32 elements.
template <class Value>
__device__ __forceinline__ Value block_sum(Value value, Value* scratch) {
    return reduce::over_block<reduce::Sum<Value>>(value, scratch);
}

// Maximum over the block, on every thread; scratch: 32 elements.
template <class Value>
__device__ __forceinline__ Value block_max(Value value, Value* scratch) {
    return reduce::over_block<reduce::Max<Value>>(value, scratch);
}

// Largest value of the block and its index, ties to the lowest index, on every thread; scratch: 32
// elements.
__device__ __forceinline__ Best block_argmax(float value, i32 index, Best* scratch) {
    return reduce::over_block<reduce::ArgMax>(Best{value, index}, scratch);
}

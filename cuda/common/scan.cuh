// Counting in thread order, and many sums of a warp at once.
//
// Like common/reduce.cuh: whole warps, every thread calls, and the host's fast branch computes a
// warp or a block at once in the same order.
#pragma once

#include "common/reduce.cuh"

namespace scan {

#ifdef DSV4_HOST_FAST

struct Count {
    i32 value, total;
};

inline void fold_counts(void* const* slots, int threads) {
    i32 before = 0;
    for (int i = 0; i < threads; ++i) {
        Count& slot = *static_cast<Count*>(slots[i]);
        const i32 value = slot.value;
        slot.value = before;
        before += value;
    }
    for (int i = 0; i < threads; ++i) static_cast<Count*>(slots[i])->total = before;
}

template <class Value, int N>
void fold_sums(void* const* slots, unsigned) {
    Value totals[N];
    for (int i = 0; i < N; ++i) {
        Value lanes[32];
        for (int lane = 0; lane < 32; ++lane) lanes[lane] = static_cast<Value*>(slots[lane])[i];
        totals[i] = host::butterfly<reduce::Sum<Value>>(lanes);
    }
    for (int lane = 0; lane < 32; ++lane)
        static_cast<Value*>(slots[lane])[0] = totals[lane / (32 / N)];
}

#endif

// One step of the butterfly for 2 `KEPT` values, then the steps after it. A template, because the
// values must stay in registers.
template <i32 OFFSET, i32 KEPT, class Value, int N>
__device__ __forceinline__ void sum_over_warp(Value (&value)[N]) {
    if constexpr (KEPT > 0) {
        const bool upper = reduce::thread_of_block() & OFFSET;
#pragma unroll
        for (i32 i = 0; i < KEPT; ++i) {
            const Value mine = upper ? value[i + KEPT] : value[i];
            const Value theirs = upper ? value[i] : value[i + KEPT];
            value[i] = mine + __shfl_xor_sync(FULL_WARP, theirs, OFFSET);
        }
    } else {
        value[0] += __shfl_xor_sync(FULL_WARP, value[0], OFFSET);
    }
    if constexpr (OFFSET > 1) sum_over_warp<OFFSET / 2, KEPT / 2>(value);
}

}  // namespace scan

// The sum of the values of the threads before this one; `total` becomes the block's sum. scratch: 32
// elements; on return it may be used again at once, as after a block reduction. Its first barrier
// also ends whatever the threads did before the call.
__device__ __forceinline__ i32 block_count_before(i32 value, i32* scratch, i32& total) {
#ifdef DSV4_HOST
    host::require_full_warps(true);
#endif
#ifdef DSV4_HOST_FAST
    scan::Count slot{value, 0};
    host::block_exchange(&slot, scan::fold_counts, __FILE__, __LINE__);
    total = slot.total;
    return slot.value;
#else
    const i32 thread = reduce::thread_of_block();
    const i32 lane = thread & 31, warp = thread >> 5;
    i32 sum = value;  // of this lane and those before it
#pragma unroll
    for (i32 offset = 1; offset < 32; offset *= 2) {
        const i32 other = __shfl_up_sync(FULL_WARP, sum, offset);
        if (lane >= offset) sum += other;
    }
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    // Every warp scans the warps' sums itself, which saves a barrier.
    i32 warps = lane < reduce::warps_of_block() ? scratch[lane] : 0;
#pragma unroll
    for (i32 offset = 1; offset < 32; offset *= 2) {
        const i32 other = __shfl_up_sync(FULL_WARP, warps, offset);
        if (lane >= offset) warps += other;
    }
    const i32 before_warp = __shfl_sync(FULL_WARP, warps, warp > 0 ? warp - 1 : 0);
    total = __shfl_sync(FULL_WARP, warps, 31);
    __syncthreads();
    return (warp > 0 ? before_warp : 0) + sum - value;
#endif
}

// N sums over the warp at once, N a power of two up to 32: lane i returns the sum of value number
// i / (32 / N), in the order and hence with the bits of warp_sum. It moves 32 values where N calls
// of warp_sum move 5 N: at each step a lane hands over the half of the values that it gives up.
template <class Value, int N>
__device__ __forceinline__ Value warp_sums(Value (&value)[N]) {
    static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "N is a power of two up to 32");
#ifdef DSV4_HOST
    host::require_full_warps(false);
#endif
#ifdef DSV4_HOST_FAST
    host::warp_exchange(FULL_WARP, value, scan::fold_sums<Value, N>, false, __FILE__, __LINE__);
#else
    scan::sum_over_warp<16, N / 2>(value);
#endif
    return value[0];
}

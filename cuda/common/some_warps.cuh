// A barrier for a block's first warps. Those behind them go by: they have work of their own, for which
// they must not wait.
//
// Every thread calls it. Those that go by touch nothing, before it or behind it, that it orders for the
// others; on the host they wait with them, so check mode would not say so.
#pragma once

#include "common/types.cuh"

#ifdef DSV4_HOST
template <int Threads>
HOST_COLLECTIVE __device__ __forceinline__ void sync_first(HOST_SITE_PARAMETERS) {
    host::block_exchange(nullptr, nullptr, file, line);
}
#else
template <int Threads>
__device__ __forceinline__ void sync_first() {
    static_assert(Threads % 32 == 0, "whole warps come to a barrier");
    if (threadIdx.x < Threads) asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}
#endif

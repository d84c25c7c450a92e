// Flags in memory that another device writes: raised behind data, and waited for before it is read.
//
// Raising covers what the whole block wrote before a barrier in front of it; once a flag is seen,
// a barrier lets the whole block read what was written behind it. On the host both are updates of
// the flag, by which the checker orders blocks.
#pragma once

#include "common/types.cuh"

#ifdef DSV4_HOST

__device__ __forceinline__ void raise_flag(u32* flag, u32 value) {
    __threadfence_system();
    atomicExch(flag, value);
}
__device__ __forceinline__ u32 seen_flag(u32* flag) {
    const u32 value = atomicOr(flag, 0);
    __threadfence_system();
    return value;
}
// Lets whoever raises the flag run: there may be fewer cores than blocks.
__device__ __forceinline__ void between_looks() { __nanosleep(0); }

#else

__device__ __forceinline__ void raise_flag(u32* flag, u32 value) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ u32 seen_flag(u32* flag) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
__device__ __forceinline__ void between_looks() {}

#endif

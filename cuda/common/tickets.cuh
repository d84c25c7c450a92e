// Tickets by which the blocks of a launch tell each other how far they are, without waiting.
//
// One thread calls, behind a barrier: then what the whole block wrote before is there for the block
// that learns of it, and what that block reads after it is fresh if it reads past L1 (__ldcg). One
// instruction orders both ways, where a fence before and one behind an atomic cost a way to L2 each.
#pragma once

#include "common/types.cuh"

#ifndef DSV4_HOST

// Adds to the ticket; returns what it held before.
__device__ __forceinline__ i32 add_ticket(i32* ticket, i32 value) {
    i32 before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(value)
                 : "memory");
    return before;
}

// Sets bits of the ticket; returns what it held before.
__device__ __forceinline__ i32 mark_ticket(i32* ticket, i32 bits) {
    i32 before;
    asm volatile("atom.or.acq_rel.gpu.global.b32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(bits)
                 : "memory");
    return before;
}

// What the ticket holds.
__device__ __forceinline__ i32 see_ticket(const i32* ticket) {
    i32 value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(ticket) : "memory");
    return value;
}

// What a counter of other blocks holds by now; it orders nothing else.
__device__ __forceinline__ i32 see_count(const i32* counter) {
    i32 value;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Whether this is the last of `count` to come; the ticket is 0 before the first and after the last.
__device__ __forceinline__ bool take_last_ticket(i32* ticket, u32 count) {
    u32 before;
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(count - 1)
                 : "memory");
    return before == count - 1;
}

#else

__device__ __forceinline__ i32 add_ticket(i32* ticket, i32 value) {
    __threadfence();
    const i32 before = atomicAdd(ticket, value);
    __threadfence();
    return before;
}
__device__ __forceinline__ i32 mark_ticket(i32* ticket, i32 bits) {
    __threadfence();
    const i32 before = atomicOr(ticket, bits);
    __threadfence();
    return before;
}
__device__ __forceinline__ i32 see_ticket(const i32* ticket) {
    const i32 value = atomicAdd(const_cast<i32*>(ticket), 0);
    __threadfence();
    return value;
}
__device__ __forceinline__ i32 see_count(const i32* counter) {
    return atomicAdd(const_cast<i32*>(counter), 0);
}
__device__ __forceinline__ bool take_last_ticket(i32* ticket, u32 count) {
    __threadfence();
    const bool last = atomicInc((u32*)ticket, count - 1) == count - 1;
    __threadfence();
    return last;
}

#endif

// Whether this is the last of `count` blocks to come here: then it sees what all wrote before. By every
// thread of the block.
__device__ __forceinline__ bool is_last_block(i32* ticket, u32 count) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = take_last_ticket(ticket, count);
    __syncthreads();
    return last;
}

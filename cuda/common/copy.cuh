// Vector loads and stores of 16 bytes, and asynchronous copies from global to shared memory.
//
// Every address must be a multiple of what is moved. An asynchronous copy lands at the wait, for the thread
// that issued it only: a barrier must follow before other threads read it, and another before they
// may overwrite what they read.
#pragma once

#include "common/types.cuh"

#ifdef DSV4_HOST
using host::require_aligned16;
#else
__device__ __forceinline__ void require_aligned16(const void*) {}  // the device faults by itself
#endif

__device__ __forceinline__ uint4 load16(const void* from) {
    require_aligned16(from);
    return *reinterpret_cast<const uint4*>(from);
}
__device__ __forceinline__ void store16(void* to, uint4 value) {
    require_aligned16(to);
    *reinterpret_cast<uint4*>(to) = value;
}

#ifndef DSV4_HOST

// Brings the 128 bytes around an address into the L2 cache, to be read later by any block.
__device__ __forceinline__ void prefetch_l2(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" : : "l"(from));
}

// Read-only data used once: past L1. Weights stream through this.
__device__ __forceinline__ uint4 load16_once(const void* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

// The same, where it is written: the assembler lets it pass no barrier, of a warp neither, as it does with
// memory that nobody writes. For loads that are to leave before what is written behind such a barrier.
__device__ __forceinline__ uint4 load16_here(const void* from) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

// Starts a copy of 16 bytes.
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}

// Starts a copy of 4 or 8 bytes, through L1.
template <int bytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
    static_assert(bytes == 4 || bytes == 8, "16 bytes go past L1");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "n"(bytes)
                 : "memory");
}

// Starts a copy of 16 bytes, or of 16 zero bytes when `valid` is false; then global is not read.
__device__ __forceinline__ void cp_async16_or_zero(void* shared, const void* global, bool valid) {
    const u32 bytes = valid ? 16u : 0u;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// The same through L1, for sectors of 32 bytes that two copies share.
__device__ __forceinline__ void cp_async16_cached_or_zero(void* shared, const void* global,
                                                          bool valid) {
    const u32 bytes = valid ? 16u : 0u;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Closes the group of copies that this thread started since its last commit.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's latest groups are still on their way.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

// The same for all of them, whether they are in a group or not.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" : : : "memory");
}

#else

__device__ __forceinline__ void prefetch_l2(const void*) {}
__device__ __forceinline__ uint4 load16_once(const void* from) { return load16(from); }
__device__ __forceinline__ uint4 load16_here(const void* from) { return load16(from); }
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
    host::start_copy(shared, global, true);
}
template <int bytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
    host::start_copy(shared, global, true, bytes);
}
__device__ __forceinline__ void cp_async16_or_zero(void* shared, const void* global, bool valid) {
    host::start_copy(shared, global, valid);
}
__device__ __forceinline__ void cp_async16_cached_or_zero(void* shared, const void* global,
                                                          bool valid) {
    host::start_copy(shared, global, valid);
}
__device__ __forceinline__ void cp_async_commit() { host::commit_copies(); }
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    host::wait_for_copies(pending);
}
__device__ __forceinline__ void cp_async_wait_all() {
    host::commit_copies();
    host::wait_for_copies(0);
}

#endif

// Clusters: neighbouring blocks of a grid that run together and write into each other's shared memory.
//
// A kernel says how many with CLUSTER_OF, and its declaration's geometry the same number. Blocks send each
// other letters: stores of which the receiver counts the bytes. So a block waits for what it needs and for
// nothing else; a cluster's barrier would also wait until all that was written to memory is there.
//
//   open_inbox        by one thread: how many bytes will come, in all
//   enter_cluster, await_cluster   every thread calls both; then every inbox is open
//   send              stores values where block `rank` has what this block has at `own`, and counts them
//                     in its inbox. No sender knows when a letter is read, so a place gets one in a
//                     launch. Before, its block may use it for itself, up to a __syncthreads in front of
//                     enter_cluster.
//   await_mail        every thread calls it, in all blocks, inbox after inbox in the same order; then all
//                     bytes are there for those that read them: others go by. A block ends behind its
//                     last one. It orders nothing else.
//
// Sixteen blocks are what sm_90 and sm_100 take. For other cards a kernel needs another way
// (HAS_CLUSTERS 0), and so it does where a cluster would be one block: compute-sanitizer takes letters
// of a block to itself for faults.
#pragma once

#include "common/types.cuh"

#ifndef DSV4_HOST

#define HAS_CLUSTERS (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)

struct Inbox {
    u64 barrier;
};

#if HAS_CLUSTERS
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)

// This block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 shared_address(const void* own) {
    return (u32)__cvta_generic_to_shared(own);
}
__device__ __forceinline__ u32 address_in(const void* own, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
    return there;
}

__device__ __forceinline__ void open_inbox(Inbox& own, u32 bytes) {
    const u32 box = shared_address(&own);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(box) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(box), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void enter_cluster() {
    __syncwarp();  // these barriers want warps whole
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Relaxed: a release would wait for all of memory. What was read before a __syncthreads has been read.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void send(Inbox& box, float* own, int rank, float value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                     address_in(own, rank)),
                 "f"(value), "r"(address_in(&box, rank))
                 : "memory");
}
__device__ __forceinline__ void send(Inbox& box, float* own, int rank, const float (&value)[2]) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            address_in(own, rank)),
        "f"(value[0]), "f"(value[1]), "r"(address_in(&box, rank))
        : "memory");
}
__device__ __forceinline__ void send(Inbox& box, float* own, int rank, const float (&value)[4]) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(address_in(own, rank)),
        "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(address_in(&box, rank))
        : "memory");
}

__device__ __forceinline__ void await_mail(const Inbox& own, bool reads = true) {
    if (!reads) return;
    asm volatile(
        "{\n\t"
        ".reg .pred there;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], 0;\n\t"
        "@!there bra again;\n\t"
        "}" ::"r"(shared_address(&own))
        : "memory");
}
#else
#define CLUSTER_OF(blocks)
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ void open_inbox(Inbox&, u32) {}
__device__ __forceinline__ void enter_cluster() {}
__device__ __forceinline__ void await_cluster() {}
template <class Value>
__device__ __forceinline__ void send(Inbox&, float*, int, const Value&) {}
__device__ __forceinline__ void await_mail(const Inbox&, bool = true) {}
#endif

#else

#define HAS_CLUSTERS 1
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)

using host::Inbox;

__device__ __forceinline__ int cluster_rank() { return host::cluster_rank(); }
__device__ __forceinline__ void open_inbox(Inbox& own, u32 bytes) { host::open_inbox(&own, bytes); }
__device__ __forceinline__ void enter_cluster() { host::enter_cluster(); }
HOST_COLLECTIVE __device__ __forceinline__ void await_cluster(HOST_SITE_PARAMETERS) {
    host::cluster_barrier(file, line);
}
__device__ __forceinline__ void send(Inbox& box, float* own, int rank, float value,
                                     HOST_SITE_PARAMETERS) {
    *static_cast<float*>(host::letter_to(&box, own, rank, 4, file, line)) = value;
}
__device__ __forceinline__ void send(Inbox& box, float* own, int rank, const float (&value)[2],
                                     HOST_SITE_PARAMETERS) {
    float* const there = static_cast<float*>(host::letter_to(&box, own, rank, 8, file, line));
    for (int i = 0; i < 2; ++i) there[i] = value[i];
}
__device__ __forceinline__ void send(Inbox& box, float* own, int rank, const float (&value)[4],
                                     HOST_SITE_PARAMETERS) {
    float* const there = static_cast<float*>(host::letter_to(&box, own, rank, 16, file, line));
    for (int i = 0; i < 4; ++i) there[i] = value[i];
}
HOST_COLLECTIVE __device__ __forceinline__ void await_mail(const Inbox& own, bool = true,
                                                           HOST_SITE_PARAMETERS) {
    host::await_mail(&own, file, line);
}

#endif

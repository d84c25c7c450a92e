// Clusters: neighbouring blocks of a grid that run together and write into each other's shared memory.
//
// A kernel says how many with __cluster_dims__, and its declaration's geometry the same number. Every
// thread of a cluster comes to every cluster_sync: what was put before it is there behind it, as
// behind __syncthreads. Nothing may be put before the first one, for a block may not have begun, nor
// behind the last one of the block that is to receive it.
//
// Sixteen blocks are what sm_90 and sm_100 take. For other cards a kernel needs another way
// (HAS_CLUSTERS 0).
#pragma once

#include "common/types.cuh"

#ifndef DSV4_HOST

#define HAS_CLUSTERS (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#if HAS_CLUSTERS
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)

// This block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Stores a value where block `rank` has what this block has at `own`, in shared memory.
__device__ __forceinline__ void put(float* own, int rank, float value) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"((u32)__cvta_generic_to_shared(own)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
#else
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_sync() {}
__device__ __forceinline__ void put(float*, int, float) {}
#endif

#else

#define HAS_CLUSTERS 1
#define CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)

__device__ __forceinline__ int cluster_rank() { return host::cluster_rank(); }

HOST_COLLECTIVE __device__ __forceinline__ void cluster_sync(HOST_SITE_PARAMETERS) {
    host::cluster_barrier(file, line);
}

__device__ __forceinline__ void put(float* own, int rank, float value, HOST_SITE_PARAMETERS) {
    *static_cast<float*>(host::shared_of(own, rank, file, line)) = value;
}

#endif

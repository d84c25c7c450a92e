// Clusters of CLUSTER blocks that pass values on, in static and in dynamic shared memory; FAULT leaves
// one rule out.
#include "common/cluster.cuh"

#ifndef FAULT
#define FAULT 0
#endif
constexpr int NONE = 0, EARLY = 1, NO_SYNC = 2, GONE = 3, UNWRITTEN = 4, OUTSIDE = 5;

// x, y [blocks * threads]: every block ends with what the block `rounds` before it in its cluster had,
// turned round as often.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(64)
    pass_on(const float* x, float* y, i32 rounds) {
    __shared__ float box[2][64];
    extern __shared__ float far[];
    const int i = threadIdx.x, rank = cluster_rank(), next = (rank + 1) % CLUSTER;
    const i64 at = (i64)blockIdx.x * 64 + i;
    float value = x[at];
    if (FAULT == EARLY) put(&box[0][i], next, value);
    cluster_sync();
    if (FAULT == OUTSIDE) put(&value, next, value);
    for (int round = 0; round < rounds; ++round) {
        float* const own = round % 3 == 2 ? far : box[round % 2];
        if (FAULT != UNWRITTEN || round > 0) put(own + i, next, value);
        if (FAULT != NO_SYNC) cluster_sync();
        value = own[63 - i];
        // The same place is put into again three rounds on, or two.
        cluster_sync();
    }
    y[at] = value;
    if (FAULT == GONE && rank == 0 && CLUSTER > 1) return;
    if (FAULT == GONE) {
        cluster_sync();
        put(&box[0][i], 0, value);
    }
}

// Counts by atomics across clusters: the last block of all adds up what each left in memory.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(64)
    last_adds(const float* x, float* left, float* y, u32* ticket) {
    __shared__ float sums[CLUSTER];
    __shared__ bool last;
    cluster_sync();
    if (threadIdx.x == 0) put(&sums[cluster_rank()], 0, x[blockIdx.x]);
    cluster_sync();
    if (threadIdx.x != 0 || cluster_rank() != 0) return;
    float sum = 0.0f;
    for (int i = 0; i < CLUSTER; ++i) sum += sums[i];
    left[blockIdx.x / CLUSTER] = sum;
    __threadfence();
    const u32 clusters = gridDim.x / CLUSTER;
    last = atomicInc(ticket, clusters - 1) == clusters - 1;
    __threadfence();
    if (!last) return;
    float all = 0.0f;
    for (u32 i = 0; i < clusters; ++i) all += left[i];
    *y = all;
}

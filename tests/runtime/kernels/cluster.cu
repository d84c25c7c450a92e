// Clusters of CLUSTER blocks that send values round, in static and in dynamic shared memory; FAULT
// leaves one rule out.
#include "common/cluster.cuh"

#ifndef FAULT
#define FAULT 0
#endif
constexpr int EARLY = 1, NO_WAIT = 2, GONE = 3, LOST = 4, OUTSIDE = 5, TWICE = 6, UNSENT = 7;
constexpr int READ = 1, WRITTEN = 2, ODD = 3;  // of take_place
constexpr int ROUNDS = 3;

// x, y [blocks * 64]: every block ends with what the block three before it in its cluster had, turned
// round as often.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(64)
    send_round(const float* x, float* y) {
    __shared__ Inbox inbox[ROUNDS];
    __shared__ __align__(16) float near[2][64];
    extern __shared__ __align__(16) float far[];
    const int i = threadIdx.x, rank = cluster_rank(), next = (rank + 1) % CLUSTER;
    const i64 at = (i64)blockIdx.x * 64 + i;
    if (i < ROUNDS) open_inbox(inbox[i], 256);
    enter_cluster();
    float value = x[at];
    if (FAULT == EARLY) send(inbox[0], &near[0][i], next, value);
    await_cluster();
    if (FAULT == OUTSIDE) send(inbox[0], &value, next, value);
    for (int round = 0; round < ROUNDS; ++round) {
        float* const own = round == 2 ? far : near[FAULT == TWICE ? 0 : round];
        if (round == 1) {
            float four[4];
            for (int e = 0; e < 4; ++e) four[e] = __shfl_down_sync(0xffffffffu, value, e);
            if (i % 4 == 0) send(inbox[1], own + i, next, four);
        } else if (FAULT != LOST || i > 0) {
            if (FAULT != UNSENT) send(inbox[round], own + i, next, value);
        }
        if (FAULT != NO_WAIT && (FAULT != UNSENT || round > 0)) await_mail(inbox[round]);
        value = own[63 - i];
    }
    y[at] = value;
    if (FAULT != GONE || rank == 0) return;
    await_mail(inbox[2]);
    send(inbox[0], &near[0][i], 0, value);
}

// x, y [blocks * 64]: letters take the place of what a block had there; each adds what it had to what
// the block before it had.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(64)
    take_place(const float* x, float* y) {
    __shared__ Inbox inbox;
    __shared__ __align__(16) float room[64 + 2];
    const int i = threadIdx.x, next = (cluster_rank() + 1) % CLUSTER;
    const i64 at = (i64)blockIdx.x * 64 + i;
    if (i == 0) open_inbox(inbox, 256);
    room[i] = x[at];
    __syncthreads();
    float had = FAULT == READ ? 0.0f : room[i ^ 1];
    __syncthreads();
    enter_cluster();
    if (FAULT == READ) had = room[i ^ 1];
    if (FAULT == WRITTEN) room[i] = 0.0f;
    await_cluster();
    const float two[2] = {had, __shfl_xor_sync(0xffffffffu, had, 1)};
    if (i % 2 == 0) send(inbox, room + i + (FAULT == ODD), next, two);
    await_mail(inbox);
    y[at] = had + room[i];
}

// Atomics across clusters: the last block of all adds up what each left in memory. FAULT: the first
// block of a cluster takes what the others left there, which no mail orders.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(64)
    last_adds(const float* x, float* left, float* y, u32* ticket) {
    __shared__ Inbox inbox;
    __shared__ float values[CLUSTER];
    __shared__ bool last;
    const bool leads = cluster_rank() == 0;
    if (threadIdx.x == 0) open_inbox(inbox, leads ? 4 * CLUSTER : 0);
    enter_cluster();
    await_cluster();
    if (FAULT && threadIdx.x == 0 && !leads) left[blockIdx.x / CLUSTER] = 1.0f;
    if (threadIdx.x == 0) send(inbox, &values[cluster_rank()], 0, x[blockIdx.x]);
    await_mail(inbox);
    if (threadIdx.x != 0 || !leads) return;
    float sum = FAULT ? left[blockIdx.x / CLUSTER] : 0.0f;
    for (int i = 0; i < CLUSTER; ++i) sum += values[i];
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

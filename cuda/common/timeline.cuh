// When launches of a step begin and wait, recorded where LAB_TIMELINE is defined; a product build has none
// of it.
//
// The first thread of a launch's first block records. Before launches the tool fills the symbol
// `lab_timeline` of every module (capacity and the address of its records), and reads `count` after them.
// Launches pass both places in their order, so times tell which launch a record is of. Recording takes
// about a microsecond in that one block.
#pragma once

#include "common/types.cuh"

enum { TIME_BEGUN, TIME_WAITED };  // at let_next_start; behind wait_for_previous

struct TimelineRecord {
    u64 nanoseconds;
    u32 place;
    u32 unused;
};

struct TimelineBuffer {
    u64 count;
    u64 capacity;
    TimelineRecord* records;
};

extern "C" __device__ TimelineBuffer lab_timeline;
__device__ TimelineBuffer lab_timeline;

__device__ inline void note_time(u32 place) {
    if (threadIdx.x != 0 || blockIdx.x + blockIdx.y + blockIdx.z != 0) return;
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    const u64 at = atomicAdd(&lab_timeline.count, 1ull);
    if (at < lab_timeline.capacity) lab_timeline.records[at] = {now, place, 0};
}

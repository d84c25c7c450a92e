// PROBE(stage, index, value) records an intermediate value when LAB_PROBE is defined; otherwise it
// expands to nothing, not even evaluating its arguments, so a product build carries no trace.
//
// Recording: the debugger fills the symbol `lab_probe` (capacity and the address of a buffer of
// records) before a launch and reads `count` after it. `stage` is a string literal; a record holds
// its 32-bit FNV-1a hash. Records come in no particular order: sort by (stage, index). Beyond the
// capacity only the count goes on, so an overflow is seen.
#pragma once

#ifdef LAB_PROBE

#include "common/types.cuh"

struct ProbeRecord {
    u32 stage;
    u32 unused;
    i64 index;
    double value;
};

struct ProbeBuffer {
    u64 count;
    u64 capacity;
    ProbeRecord* records;
};

#ifdef DSV4_HOST
extern "C" __attribute__((visibility("default"))) ProbeBuffer lab_probe;
ProbeBuffer lab_probe;
#else
extern "C" __device__ ProbeBuffer lab_probe;
__device__ ProbeBuffer lab_probe;
#define HOST_UNCHECKED
#endif

__device__ constexpr u32 probe_stage(const char* name) {
    u32 hash = 2166136261u;
    while (*name) hash = (hash ^ (u8)*name++) * 16777619u;
    return hash;
}

HOST_UNCHECKED __device__ inline void probe_record(u32 stage, i64 index, double value) {
    const u64 place = atomicAdd(&lab_probe.count, 1ull);
    if (place < lab_probe.capacity) lab_probe.records[place] = {stage, 0, index, value};
}

#define PROBE(stage, index, value)                             \
    do {                                                       \
        constexpr u32 probe_id = probe_stage(stage);           \
        probe_record(probe_id, (i64)(index), (double)(value)); \
    } while (0)

// Statements that are there for probes only.
#define PROBED(...) __VA_ARGS__

#else

#define PROBE(stage, index, value) ((void)0)
#define PROBED(...)

#endif

// schedule: where the rows of a step lie, from the position of its first row, read on the device
//
//   start i32 [1]    each output i32 [T]; row t is at position p = start[0] + t
//
//   positions    p
//   ring_rows    p % ring: where the row of keys and values lies in the ring
//   raw_rows     p % raw: where the compressor's raw rows lie in theirs
//   blocks       complete blocks that the row sees: (p + 1) / ratio, or 0 without a ratio
//   index_rows   the block that ends at p: p / ratio, or -1 where none does
//   store_rows   the same, base rows further on
//   firsts       the first position of that block, or 0
//
//   schedule_advance   start[0] += count
//
// Everything that changes from step to step comes from here, so a recorded step can be replayed at
// any position. One thread a row; integers only.
#include "common/types.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
    schedule(const i32* start, i32* positions, i32* ring_rows, i32* raw_rows, i32* blocks,
             i32* index_rows, i32* store_rows, i32* firsts, i32 T, i32 ring, i32 raw, i32 ratio,
             i32 base) {
    const i32 t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= T) return;
    const i32 p = start[0] + t;
    const bool ends = ratio > 0 && (p + 1) % ratio == 0;
    positions[t] = p;
    ring_rows[t] = p % ring;
    raw_rows[t] = p % raw;
    blocks[t] = ratio > 0 ? (p + 1) / ratio : 0;
    index_rows[t] = ends ? p / ratio : -1;
    store_rows[t] = ends ? base + p / ratio : -1;
    firsts[t] = ends ? p + 1 - ratio : 0;
}

extern "C" __global__ void schedule_advance(i32* start, i32 count) { start[0] += count; }

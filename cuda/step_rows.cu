// step_rows: where the rows of a step lie and what they see, for every compress ratio at once
//
//   start i32 [1]    rules i32 [G, 5]: ring, raw, ratio, base, open    places i32 [G, 7, T]
//   ids i32 [G, T, S]
//
//   places[g]   positions, ring_rows, raw_rows, blocks, index_rows, store_rows, firsts, as in schedule
//   ids[g, t]   the row's window, then the blocks that it sees, as in index_lists_window; where `open`
//               is not 0 the tail is absent (-1), to be filled by a selection
//
// Rings are at least 1 long, a ratio is at least 0 and a start too: 0 stands for less. One thread an
// entry of a list; integers only.
#include "common/overlap.cuh"
#include "common/types.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
    step_rows(const i32* start, const i32* rules, i32* places, i32* ids, i32 T, i32 S, i32 window) {
    let_next_start();
    wait_for_previous();
    const i32 t = blockIdx.y, g = blockIdx.z, entry = blockIdx.x * THREADS + threadIdx.x;
    const i32* const rule = rules + g * 5;
    const i32 ring = max(1, rule[0]), raw = max(1, rule[1]), ratio = max(0, rule[2]);
    const i32 base = rule[3], p = max(0, start[0]) + t;
    const i32 blocks = ratio > 0 ? (p + 1) / ratio : 0;
    if (entry == 0) {
        const bool ends = ratio > 0 && (p + 1) % ratio == 0;
        i32* const at = places + (i64)g * 7 * T + t;
        at[0] = p;
        at[T] = p % ring;
        at[2 * T] = p % raw;
        at[3 * T] = blocks;
        at[4 * T] = ends ? p / ratio : -1;
        at[5 * T] = ends ? base + p / ratio : -1;
        at[6 * T] = ends ? p + 1 - ratio : 0;
    }
    if (entry >= S) return;
    const i32 listed = max(0, p - window + 1) + entry, block = entry - window;
    i32 row = -1;
    if (block < 0)
        row = listed <= p ? listed % ring : -1;
    else if (rule[4] == 0 && block < blocks)
        row = base + block;
    ids[((i64)g * T + t) * S + entry] = row;
}

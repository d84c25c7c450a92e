// index_lists: which rows each query attends to: its window, then the blocks it sees, as row numbers
//
//   positions i32 [T]    blocks i32 [T]    ids i32 [T, S], rows ids_stride apart
//
// Entry s < window stands for position q = max(0, p - window + 1) + s, ascending; it is absent (-1)
// past p. Its row is q % ring: the slot of a ring, or q itself where ring exceeds every position.
// Entry window + c stands for block c, row base + c, absent from blocks[t] on; a count below 0 leaves
// the whole tail absent, to be filled by a selection. A query at a position below 0 has no window.
//
//   index_lists_window     as above
//   index_lists_redirect   positions from first[0] on are not in the ring yet: theirs are the rows
//                          transient, transient + 1, ...
//
// One thread an entry; integers only.
#include "common/types.cuh"

constexpr int THREADS = 128;

// The position of a window entry, or -1.
__device__ __forceinline__ i32 listed_position(i32 position, i32 window, i32 entry) {
    if (position < 0) return -1;
    const i32 listed = max(0, position - window + 1) + entry;
    return listed <= position ? listed : -1;
}

// The row of the block of a tail entry, or -1.
__device__ __forceinline__ i32 block_row(i32 blocks, i32 block, i32 base) {
    return block < blocks ? base + block : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    index_lists_window(const i32* positions, const i32* blocks, i32* ids, i32 S, i64 ids_stride,
                       i32 window, i32 ring, i32 base) {
    const i32 entry = blockIdx.x * THREADS + threadIdx.x;
    if (entry >= S) return;
    i32 row;
    if (entry < window) {
        const i32 listed = listed_position(positions[blockIdx.y], window, entry);
        row = listed < 0 ? -1 : listed % ring;
    } else {
        row = block_row(blocks[blockIdx.y], entry - window, base);
    }
    ids[blockIdx.y * ids_stride + entry] = row;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    index_lists_redirect(const i32* positions, const i32* blocks, const i32* first, i32* ids, i32 S,
                         i64 ids_stride, i32 window, i32 ring, i32 base, i32 transient) {
    const i32 entry = blockIdx.x * THREADS + threadIdx.x;
    if (entry >= S) return;
    i32 row;
    if (entry < window) {
        const i32 listed = listed_position(positions[blockIdx.y], window, entry);
        const i32 start = first[0];
        row = listed < 0 ? -1 : listed >= start ? transient + (listed - start) : listed % ring;
    } else {
        row = block_row(blocks[blockIdx.y], entry - window, base);
    }
    ids[blockIdx.y * ids_stride + entry] = row;
}

// topk: the S largest of the first visible[t] scores of every row, in order
//
//   score f32 [T, N]    visible i32 [T]    ids i32 [T, S], rows ids_stride apart    nans i32 [T]
//
// ids[t,:] holds offset + index, the larger score first, the lower index first among equals; +0 and
// -0 are equal. From min(S, visible[t]) on it holds -1. A score of minus infinity that is visible
// counts; a NaN comes after everything else, and nans[t] counts the visible ones, so that the caller
// can refuse them without reading the scores. Counts below 0 and above N mean none and all.
//
// One block a row, by common/selection.cuh.
#include "common/types.cuh"

#ifndef THREADS
#define THREADS 1024
#endif
#ifndef PLACES
#define PLACES 512
#endif
static_assert((PLACES & (PLACES - 1)) == 0 && PLACES >= 2 && PLACES <= 4096,
              "PLACES is S rounded up to a power of two, from 2 to 4096");
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");

constexpr int ENTRIES = PLACES;
#include "common/selection.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    topk(const float* score, const i32* visible, i32* ids, i32* nans, i32 N, i32 S, i64 ids_stride,
         i32 offset) {
    __shared__ Board board;
    score += (i64)blockIdx.x * N;
    ids += blockIdx.x * ids_stride;
    const i32 count = max(0, min(visible[blockIdx.x], N));
    const i32 places = min(S, count);

    for (i32 i = threadIdx.x; i < PLACES; i += THREADS) board.entry[i] = 0;
    __syncthreads();
    const i32 bad = count <= places ? take_all(score, count, board)
                                    : take_largest(score, count, places, board);
    sort_descending(board, PLACES);

    for (i32 i = threadIdx.x; i < S; i += THREADS)
        ids[i] = i < places ? (i32) ~(u32)board.entry[i] + offset : -1;
    const i32 all_bad = block_sum(bad, board.scratch);
    if (threadIdx.x == 0) nans[blockIdx.x] = all_bad;
}

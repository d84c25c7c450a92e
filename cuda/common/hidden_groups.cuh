// Hidden rows of a walk on their way to its second half: groups of 128 from memory through registers
// on to their FP8 grid, in shared memory as common/fp4.cuh multiplies them.
//
// Build constants: those of common/fp4_walk.cuh, SLOT_GROUPS (walks of a token).
#pragma once

#include "common/fp4_walk.cuh"

#include "common/floats.cuh"
#include "common/fp8_groups.cuh"

// Groups of 128 that a warp loads before it puts the first on its grid; few where registers hold the
// next walk's weights meanwhile, and fewer where six are not all.
constexpr int AHEAD = SLOT_GROUPS > 1 ? 2 : X_ROWS * K_CHUNKS > 6 * WARPS ? 4 : 6;

// A warp has every WARPS-th group of 128 of hidden rows, four elements a lane: those of AHEAD groups.
struct Groups {
    Floats<4> own[AHEAD];

    static __device__ __forceinline__ int first() {
        return threadIdx.x / 32 * CHUNK + threadIdx.x % 32 * 4;
    }
    __device__ __forceinline__ void load(const float* hidden, int from, int count) {
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (from + j * WARPS * CHUNK < count)
                own[j] = load_floats<4>(hidden + from + j * WARPS * CHUNK);
    }
};

// Rows of hidden, `count` elements in all, on to their FP8 grid; a barrier follows. groups: the first
// ones, loaded. Where warps have equally many, the build knows which are there: then the groups of a
// warp are put on their grids side by side. But that there are any, it does not know: that branch keeps
// the assembler from waiting for hidden before it starts the copies in front.
__device__ __forceinline__ void quantise_rows(Groups& groups, const float* hidden, int count,
                                              const Inputs& in) {
    const int lane = threadIdx.x % 32;
    constexpr bool EVEN = SLOT_GROUPS == 1 && X_ROWS * K_CHUNKS % WARPS == 0;
    Floats<4>(&own)[AHEAD] = groups.own;
#pragma unroll 1
    for (int done = 0; done < X_ROWS * K_CHUNKS && done * CHUNK < count; done += AHEAD * WARPS) {
        const int from = Groups::first() + done * CHUNK;
        int exponent = 0;  // of group j in lane j
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int i = from + j * WARPS * CHUNK;
            if (EVEN ? done + j * WARPS >= X_ROWS * K_CHUNKS : i >= count) break;
            float amax = FP8_FLOOR;
#pragma unroll
            for (int e = 0; e < 4; ++e) amax = fmaxf(amax, finite_magnitude(own[j].at[e]));
            const int k = fp8_exponent_of(warp_max_positive(amax));
            const u32 mine = fp8_factors(own[j].at, exp2_of(-k));
            // Two lanes have the eight codes of a word of weights, and stage half of them each.
            const u32 other = __shfl_xor_sync(FULL_WARP, mine, 1);
            const bool odd = lane % 2;
            *(uint2*)(in.pairs + i / 2) = staged_half(odd ? other : mine, odd ? mine : other, odd);
            if (lane == j) exponent = k;
        }
        const int group = done + threadIdx.x / 32 + lane * WARPS;
        if (lane < AHEAD && group * CHUNK < count) in.scales[group] = exp2_of(exponent) * 0x1p8f;
        if (AHEAD * WARPS < X_ROWS * K_CHUNKS)
            groups.load(hidden, from + AHEAD * WARPS * CHUNK, count);
    }
}

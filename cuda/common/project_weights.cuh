// The matrices of project.cu: what a lane loads of them in a beat, and how that is summed.
//
// A task of a warp is a part of the sum of a tile of rows, and a beat at most LOADS loads of it.
// Rows past the end of a tile are its last one, which costs no memory, and are not kept.
#pragma once

#include "common/mma.cuh"
#include "common/project_room.cuh"

constexpr int LOADS = 4;

struct Beat {
    uint4 load[LOADS];
    float scale[2];  // of a group of both rows of a lane
};

__device__ __forceinline__ uint4 load16_if(bool there, const void* from) {
    return there ? load16_here(from) : make_uint4(0, 0, 0, 0);
}

// A global address that is made here and kept in registers, where the compiler would make it anew for
// each load; it is for load16_here, as a plain load would no longer know that it is global.
template <class Value>
__device__ __forceinline__ const Value* made_once(const Value* address) {
#ifndef DSV4_HOST
    asm volatile("" : "+l"(address));
#endif
    return address;
}

// Tasks are dealt to warps in turn; task i of this warp.
template <class Rows, int Tile, int Parts, int Beats>
struct Tasks {
    static constexpr int TILE = Tile, PARTS = Parts, BEATS = Beats;
    static constexpr int OF_WARP = ((Rows::MOST + Tile - 1) / Tile * Parts + WARPS - 1) / WARPS;

    static __device__ __forceinline__ int task(int i) { return thread() / 32 + i * WARPS; }
    static __device__ __forceinline__ int part(int i) { return task(i) % Parts; }
    static __device__ __forceinline__ bool has(int i) {
        return task(i) / Parts < Rows::tiles(Tile);
    }
    // Of the share: one that is there.
    static __device__ __forceinline__ int row(int i, int of_tile) {
        return min(task(i) / Parts * Tile + of_tile, Rows::share().count - 1);
    }
};

// Two matrices, one under the other, times unrounded x. A beat is a step.
template <class Rows, int Height, int Steps, int Parts>
struct Island : Tasks<Rows, WARP_ROWS, Parts, Steps> {
    using Mine = Tasks<Rows, WARP_ROWS, Parts, Steps>;
    const bf16 *upper, *lower;
    float* partial;  // [row of the share][row of x][part]
    const bf16* from[WARP_ROWS];
    float sum[WARP_ROWS][ROWS];

    __device__ __forceinline__ Island(const bf16* upper, const bf16* lower, float* partial)
        : upper(upper), lower(lower), partial(partial) {}

    static __device__ __forceinline__ int element(int i, int beat) {
        return (Mine::part(i) * Steps + beat) * STEP + lane() * LANE_ELEMENTS;
    }
    __device__ __forceinline__ void fetch(Beat& to, int i, int beat) {
        constexpr bool WHOLE = Parts * Steps * STEP <= WIDTH;
#pragma unroll
        for (int r = 0; r < WARP_ROWS; ++r) {
            const int row = Rows::share().first + Mine::row(i, r);
            const bf16* first = row < Height / 2 ? upper : lower;
            if (beat == 0)
                from[r] = made_once(first +
                                    (i64)(row < Height / 2 ? row : row - Height / 2) * WIDTH +
                                    element(i, 0));
            to.load[r] = load16_if(WHOLE || element(i, beat) < WIDTH, from[r] + beat * STEP);
        }
    }
    __device__ __forceinline__ void add(const Beat& beat, int i, int at, const Inputs& x,
                                        const bf16*) {
        if (at == 0) {
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r)
#pragma unroll
                for (int m = 0; m < ROWS; ++m) sum[r][m] = 0.0f;
        }
        // The last part may have fewer steps; there is no x for more.
        if (Parts * Steps <= STEPS || Mine::part(i) * Steps + at < STEPS) {
            uint4 loads[WARP_ROWS];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; ++r) loads[r] = beat.load[r];
            add_step<Bf16Weights>(loads, x, element(i, at), sum);
        }
        if (at + 1 < Steps) return;
        const LaneSum<float> mine = warp_sums(sum);
        const int row = Mine::task(i) / Parts * WARP_ROWS + mine.r;
        if (mine.keeper && row < Rows::share().count)
            partial[(row * ROWS + mine.m) * Parts + Mine::part(i)] = mine.sum;
    }
};

// Beats of a part of the sums that tensor cores make: its groups, of which the last may not be there.
constexpr int PART_GROUPS = (GROUPS + DENSE_PARTS - 1) / DENSE_PARTS;
__device__ __forceinline__ int group_of(int part, int beat) { return part + beat * DENSE_PARTS; }
// This lane's first element of a part.
__device__ __forceinline__ int first_element(int part) { return part * GROUP + lane() % 4 * 16; }
constexpr int GROUPS_APART = DENSE_PARTS * GROUP;  // elements from a group to the part's next
__device__ __forceinline__ bool has_group(int part, int beat) {
    return beat < GROUPS / DENSE_PARTS || group_of(part, beat) < GROUPS;
}
// Whether this lane's 16 elements of a chunk are elements of the row.
__device__ __forceinline__ bool has_chunk(int part, int beat, int chunk) {
    if (beat < GROUPS / DENSE_PARTS && WIDTH % GROUP == 0) return true;
    return first_element(part) + beat * GROUPS_APART + chunk * CHUNK < WIDTH;
}

// Four products of 16 elements, of which every lane quarter has four: a chunk of rounded x as operand.
// A lane without a row of x has the last one, for a column that nobody keeps.
struct Rounded {
    uint4 half[2];
    __device__ __forceinline__ Rounded(const bf16* x, int part, int beat, int chunk) {
        const bf16* from = x + min(lane() / 4, ROWS - 1) * ROUNDED_STRIDE + first_element(part) +
                           beat * GROUPS_APART + chunk * CHUNK;
        half[0] = load16(from);
        half[1] = load16(from + 8);
    }
    __device__ __forceinline__ void multiply(int product, const u32 (&a)[4],
                                             float (&sum)[4]) const {
        const uint4& of = half[product / 2];
        const u32 b[2] = {product % 2 ? of.z : of.x, product % 2 ? of.w : of.y};
        mma_bf16_16816(sum, a, b);
    }
};

// What tensor cores make: sums of a tile, in the lanes as they hold them.
// partial: [part][row of the share][row of x].
template <class Rows, int Tile>
struct Tensor : Tasks<Rows, Tile, DENSE_PARTS, PART_GROUPS> {
    using Mine = Tasks<Rows, Tile, DENSE_PARTS, PART_GROUPS>;
    static constexpr int HALVES = Tile / 8;
    float* partial;
    float total[2 * HALVES];

    __device__ __forceinline__ Tensor(float* partial) : partial(partial) {}

    __device__ __forceinline__ void keep(int i) const {
#pragma unroll
        for (int n = 0; n < 2 * HALVES; ++n) {
            const int row = Mine::task(i) / DENSE_PARTS * Tile + n / 2 * 8 + lane() / 4;
            const int m = 2 * (lane() % 4) + n % 2;
            if (m < ROWS && row < Rows::share().count)
                partial[(Mine::part(i) * Rows::MOST + row) * ROWS + m] = total[n];
        }
    }
};

// The FP8 matrices, one under the other. A lane has a row of each half of a tile.
struct Dense : Tensor<DenseDeal, (DenseDeal::MOST > 8 ? 16 : 8)> {
    const u8 *upper, *lower;
    const float *upper_scales, *lower_scales;
    int rows;  // of the upper one
    const u8* from[HALVES];
    const float* scales[HALVES];

    __device__ __forceinline__ Dense(const u8* upper, const u8* lower, const float* upper_scales,
                                     const float* lower_scales, int rows, float* partial)
        : Tensor(partial),
          upper(upper),
          lower(lower),
          upper_scales(upper_scales),
          lower_scales(lower_scales),
          rows(rows) {}

    __device__ __forceinline__ void fetch(Beat& to, int i, int beat) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            if (beat == 0) {
                const int at = DenseDeal::share().first + Mine::row(i, 8 * h + lane() / 4);
                const bool up = at < rows;
                const int row = up ? at : at - rows;
                from[h] = made_once((up ? upper : lower) + (i64)row * WIDTH +
                                    first_element(part(i)));
                scales[h] = (up ? upper_scales : lower_scales) + row / 128 * GROUPS + part(i);
            }
#pragma unroll
            for (int c = 0; c < 2; ++c)
                to.load[2 * h + c] = load16_if(has_chunk(part(i), beat, c),
                                               from[h] + beat * GROUPS_APART + c * CHUNK);
            to.scale[h] = has_group(part(i), beat) ? scales[h][beat * DENSE_PARTS] : 0.0f;
        }
    }
    __device__ __forceinline__ void add(const Beat& beat, int i, int at, const Inputs&,
                                        const bf16* x) {
        if (at == 0) {
#pragma unroll
            for (float& value : total) value = 0.0f;
        }
        if (has_group(part(i), at)) {
            float sum[4] = {};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const Rounded b(x, part(i), at, c);
                const uint4 first = beat.load[c], second = beat.load[HALVES == 2 ? 2 + c : c];
                const u32 low[4] = {first.x, first.y, first.z, first.w};
                const u32 high[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const u32 a[4] = {e4m3x2_to_bf16x2<0>(low[j]),
                                      HALVES == 2 ? e4m3x2_to_bf16x2<0>(high[j]) : 0,
                                      e4m3x2_to_bf16x2<2>(low[j]),
                                      HALVES == 2 ? e4m3x2_to_bf16x2<2>(high[j]) : 0};
                    b.multiply(j, a, sum);
                }
            }
#pragma unroll
            for (int n = 0; n < 2 * HALVES; ++n)
                total[n] = fmaf(sum[n], beat.scale[n / 2], total[n]);
        }
        if (at + 1 == BEATS) keep(i);
    }
};

// The bf16 matrix.
struct Heads : Tensor<HeadDeal, 8> {
    const bf16 *elements, *from;

    __device__ __forceinline__ Heads(const bf16* elements, float* partial)
        : Tensor(partial), elements(elements) {}

    __device__ __forceinline__ void fetch(Beat& to, int i, int beat) {
        const int row = HeadDeal::share().first + Mine::row(i, lane() / 4);
        if (beat == 0) from = made_once(elements + (i64)row * WIDTH + first_element(part(i)));
#pragma unroll
        for (int l = 0; l < LOADS; ++l)
            to.load[l] = load16_if(has_chunk(part(i), beat, l / 2),
                                   from + beat * GROUPS_APART + l / 2 * CHUNK + l % 2 * 8);
    }
    __device__ __forceinline__ void add(const Beat& beat, int i, int at, const Inputs&,
                                        const bf16* x) {
        if (at == 0) total[0] = total[1] = 0.0f;
        if (has_group(part(i), at)) {
            float sum[4] = {};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const Rounded b(x, part(i), at, c);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint4 raw = beat.load[2 * c + j / 2];
                    const u32 a[4] = {j % 2 ? raw.z : raw.x, 0, j % 2 ? raw.w : raw.y, 0};
                    b.multiply(j, a, sum);
                }
            }
            total[0] += sum[0];
            total[1] += sum[1];
        }
        if (at + 1 == BEATS) keep(i);
    }
};

using Main = Island<MainDeal, MAIN_HEIGHT, MAIN_STEPS, MAIN_PARTS>;
using Index = Island<IndexDeal, INDEX_HEIGHT, INDEX_STEPS, INDEX_PARTS>;

// Chunks of a row's heads together: how, and by blocks that meet in memory.
//
// Lane i works out how chunk i is added, from the powers of those before it, so what is left to do
// chunk by chunk is a line of products and sums.
//
// Build constants: those of common/sink.cuh, and ROOM_BYTES.
#pragma once

#include "common/convert.cuh"
#include "common/sink.cuh"
#include "common/tickets.cuh"
#include "common/turns.cuh"

constexpr int OWN_VECTORS = (VECTORS + 31) / 32;
constexpr int PATIENCE = 64;   // looks of somewhat less than a microsecond
constexpr int COUNT_BITS = 8;  // of a ticket that holds marks as well
constexpr int MARKS = 24;      // blocks of a row's heads that can leave one
constexpr int STRIP = 32;      // columns of a warp that joins, one a lane
constexpr int STRIPS = HEADS * ((DIM + STRIP - 1) / STRIP);
constexpr int STAGES = (HEADS + CHUNK) / HEADS;  // chunks of 8 heads that fit where the rows lay

// ------------------------------------------------------------------------ what every join does

// How a chunk is added to the sum of those before it: as fold of common/sink.cuh does it, with its
// powers of two made once for all columns.
struct alignas(16) Step {
    Scale sum, chunk;  // chunk.first is 0 where the chunk changes nothing

    __device__ __forceinline__ float add(float before, float here) const {
        const float both = scaled(before, sum) + scaled(here, chunk);
        return chunk.first == 0 ? before : both;
    }
};

// Lane i gets the step of chunk i of 32, whose power it has; no_power where there is none. Powers are
// numbers, and their maximum does not depend on an order. reached: of the chunks before, then of these
// too.
__device__ __forceinline__ Step step_of(float power, float& reached) {
    const int lane = threadIdx.x % 32;
    float top = power;  // of this lane and those before it; a lane without one gets its own again
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2)
        top = fmaxf(top, __shfl_up_sync(FULL_WARP, top, offset));
    const float left = __shfl_up_sync(FULL_WARP, top, 1);
    float fade, chunk_fade;
    meet(lane == 0 ? reached : fmaxf(reached, left), power, fade, chunk_fade);
    reached = fmaxf(reached, __shfl_sync(FULL_WARP, top, 31));
    Step step = {scale_of(fade), scale_of(chunk_fade)};
    if (chunk_fade == no_power<float>()) step.chunk.first = 0;
    return step;
}

// A head's sink as exp_scaled gives it, long before it is needed.
struct Sink {
    float y, power;
};

// How an even lane turns its column and the next one back; odd lanes and the front of a head do not.
struct BackTurn {
    bool turns;
    Turn turn;

    static __device__ __forceinline__ BackTurn of(const Angles& angles, int column) {
        const i32 turned = column - (DIM - angles.R);  // even where the column is, as R is
        const bool turns = column % 2 == 0 && turned >= 0 && column < DIM;
        return {turns, turns ? angles.at(turned / 2) : Turn{}};
    }
};

__device__ __forceinline__ void store_pair(bf16* o, int column, float a, float b) {
    *reinterpret_cast<u32*>(o + column) = f32_to_bf16(a) | (u32)f32_to_bf16(b) << 16;
}

// A strip's columns of a head's o, one a lane.
__device__ __forceinline__ void store_column(bf16* o, int column, float a, const BackTurn& back) {
    float b = __shfl_down_sync(FULL_WARP, a, 1);
    if (back.turns) back.turn.apply(a, b, true);
    if (column % 2 == 0 && column < DIM) store_pair(o, column, a, b);
}

// ------------------------------------------------------------------------ through memory

// The tickets of a row and its heads: blocks that have summed, with marks of those that left their
// strips above; and blocks that will look no more.
struct Tickets {
    i32* at;

    // Which blocks' strips this one, number `own` of `count`, has to join: a bit each. By one thread.
    __device__ __forceinline__ u32 take(i32 own, i32 count) const {
        constexpr i32 COUNTED = (1 << COUNT_BITS) - 1;
        const i32 before = add_ticket(at, 1);
        if ((before & COUNTED) == count - 1) return (u32)before >> COUNT_BITS | 1u << own;
#pragma unroll 1
        for (int look = 0; look < PATIENCE; ++look)
            if ((see_ticket(at) & COUNTED) == count) return 1u << own;
        const i32 mark = (i32)(1u << (COUNT_BITS + own));
        return (mark_ticket(at, mark) & COUNTED) == count ? 1u << own : 0u;
    }
    // The last to leave puts the tickets back: nobody looks at them any more.
    __device__ __forceinline__ void leave(i32 count) const {
        if (atomicAdd(at + 1, 1) != count - 1) return;
        atomicExch(at, 0);
        atomicExch(at + 1, 0);
    }
};

// What a warp needs while it joins a strip.
struct alignas(16) Room {
    float value[MARKS][STRIP];
    Step step[MARKS];
    float total[MARKS];
};
constexpr int ROOMS = THREADS / 32 * sizeof(Room);
static_assert(ROOMS == ROOM_BYTES, "the declaration makes room for every warp");

// The chunks of a strip of one head together, by a warp. Past L1, which may hold older bytes than other
// blocks wrote. All that comes from memory is asked for first.
__device__ __forceinline__ void join_strip(const float* power, const float* total,
                                           const float* value, const Sink& sink,
                                           const Angles& angles, int first, Room& room, bf16* o,
                                           i32 B, i32 H, i64 row) {
    constexpr int VECTOR_LANES = STRIP / 4;  // of a chunk, so a warp asks for several at once
    const int lane = threadIdx.x % 32, column = first + lane;
    const int part = lane % VECTOR_LANES * 4;
    const bool there = lane < B;
    const i64 own = (i64)min(lane, B - 1) * H;
    const float own_power = __ldcg(power + own), own_total = __ldcg(total + own);
    if (first + part < DIM) {
#pragma unroll 1
        for (i32 chunk = lane / VECTOR_LANES; chunk < B; chunk += 32 / VECTOR_LANES)
            cp_async16(&room.value[chunk][part], value + (i64)chunk * H * DIM + first + part);
    }
    cp_async_commit();
    const BackTurn back = BackTurn::of(angles, column);

    float reached = no_power<float>(), all = 0, sum = 0;
    const Step own_step = step_of(there ? own_power : no_power<float>(), reached);
    if (there) {
        room.step[lane] = own_step;
        room.total[lane] = own_total;
    }
    cp_async_wait<0>();
    __syncwarp();
    const int mine = column < DIM ? lane : 0;
#pragma unroll 4
    for (i32 chunk = 0; chunk < B; ++chunk) {
        const Step step = room.step[chunk];
        all = step.add(all, room.total[chunk]);
        sum = step.add(sum, room.value[chunk][mine]);
    }
    float fade;
    const float below = denominator(reached, all, sink.y, sink.power, fade, row);
    store_column(o, column, divided(sum, fade, below), back);
    __syncwarp();
}

// What this lane has of a chunk's head starts its way to shared memory, past L1.
__device__ __forceinline__ void fetch_values(const float* value, float* tile, i32 chunk, i32 B,
                                             i32 H) {
    const int lane = threadIdx.x % 32;
    if (chunk < B) {
#pragma unroll
        for (int i = 0; i < OWN_VECTORS; ++i) {
            const int at = 4 * (lane + 32 * i);
            if (at < DIM) cp_async16(tile + at, value + (i64)chunk * H * DIM + at);
        }
    }
    cp_async_commit();
}

// The chunks of one head together, by a warp. power, total, value: of its first chunk.
__device__ __forceinline__ void join_by_warp(const float* power, const float* total,
                                             const float* value, const Sink& sink,
                                             const Angles& angles, float* tiles, bf16* o, i32 B,
                                             i32 H, i64 row) {
    const int lane = threadIdx.x % 32;
    float* const tile = tiles + threadIdx.x / 32 * DIM;  // of the first stage
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
        fetch_values(value, tile + stage * HEADS * DIM, stage, B, H);
    float sum[OWN_VECTORS][4] = {}, all = 0, reached = no_power<float>();
    Step steps = {};  // lane i has that of chunk i of 32
    float totals = 0;
    float next_power = lane < B ? __ldcg(power + (i64)lane * H) : no_power<float>();
    float next_total = lane < B ? __ldcg(total + (i64)lane * H) : 0.0f;
    int stage = 0;
    for (i32 chunk = 0; chunk < B; ++chunk) {
        if (chunk % 32 == 0) {
            steps = step_of(next_power, reached);
            totals = next_total;
            const i32 next = chunk + 32 + lane;
            next_power = next < B ? __ldcg(power + (i64)next * H) : no_power<float>();
            next_total = next < B ? __ldcg(total + (i64)next * H) : 0.0f;
        }
        const int free = stage == 0 ? STAGES - 1 : stage - 1;
        fetch_values(value, tile + free * HEADS * DIM, chunk + STAGES - 1, B, H);
        const Step step = {{__shfl_sync(FULL_WARP, steps.sum.first, chunk % 32),
                            __shfl_sync(FULL_WARP, steps.sum.second, chunk % 32)},
                           {__shfl_sync(FULL_WARP, steps.chunk.first, chunk % 32),
                            __shfl_sync(FULL_WARP, steps.chunk.second, chunk % 32)}};
        all = step.add(all, __shfl_sync(FULL_WARP, totals, chunk % 32));
        cp_async_wait<STAGES - 1>();
#pragma unroll
        for (int i = 0; i < OWN_VECTORS; ++i) {
            const int at = 4 * (lane + 32 * i);
            if (at >= DIM) continue;
            const float4 v = *(const float4*)(tile + stage * HEADS * DIM + at);
            sum[i][0] = step.add(sum[i][0], v.x);
            sum[i][1] = step.add(sum[i][1], v.y);
            sum[i][2] = step.add(sum[i][2], v.z);
            sum[i][3] = step.add(sum[i][3], v.w);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    float fade;
    const float below = denominator(reached, all, sink.y, sink.power, fade, row);
#pragma unroll
    for (int i = 0; i < OWN_VECTORS; ++i) {
        const int at = 4 * (lane + 32 * i);
        if (at >= DIM) continue;
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            float a = divided(sum[i][half], fade, below);
            float b = divided(sum[i][half + 1], fade, below);
            const i32 turned = at + half - (DIM - angles.R);
            if (turned >= 0) angles.at(turned / 2).apply(a, b, true);
            store_pair(o, at + half, a, b);
        }
    }
}

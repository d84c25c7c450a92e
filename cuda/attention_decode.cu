// attention_decode: sink attention of a few rows in one launch, from what wq_b gives to what wo_a takes
//
//   q f32 [T, H, K]    kv f32 [N, K]    ids i32 [T, S], rows ids_stride apart    sink f32 [H]
//   table f32 [P, R]: (cos, sin) pairs    positions i32 [T]    o bf16 [T, H, K]
//   power, total f32 [T, B, H] and value f32 [T, B, H, K], B chunks of a list: between blocks
//   ticket i32 [T, ceil(H / 2), 2], zero before a launch and zero again after it
//
// The bytes are those of rms_norm_head_f32 on q, rope, attention_sink_split_f32,
// attention_sink_join_f32, rope backwards and cast_bf16, one after the other: the same operations in
// the same order, of which only the last rounds to bf16. Ids, empty lists and sinks as there.
//
// One block of 10 warps takes one chunk of a list and HEADS heads: 2, 4 or 8, as few as leave a large
// GPU no more blocks than multiprocessors. A warp asks for the four rows whose logits it sums, and waits
// for nobody else's. While they are on their way, warp w normalises and rotates head w: lane l holds
// columns l + 32 i, which is what thread l + 32 (i % 4) of rms_norm_head has, so four sums folded like
// its four warps give its factor.
//
// Every chunk of a row's HEADS heads takes a ticket. In a launch whose blocks run at the same time the
// join is shared out before: a block has every B-th strip of 32 columns of the heads, and joins it as
// soon as it sees all tickets taken. It looks PATIENCE times, some tens of microseconds at most, then
// marks its strips as left; the block that takes the last ticket sees those marks, and joins what is
// left. A block whose mark comes after the last ticket sees that, and joins its own. So nobody depends
// on anybody, and who joins does not show. In a larger launch the last block joins alone, a warp a head,
// with several chunks on their way to shared memory.
//
// Either way lane i works out how chunk i is added, from the powers of those before it, so what is left
// to do chunk by chunk is a line of products and sums. Loops are not unrolled where they need not be:
// in a step every launch finds the caches of instructions filled by others, and waits for its own.
#include "common/convert.cuh"
#include "common/overlap.cuh"
#include "common/sink.cuh"
#include "common/tickets.cuh"

constexpr int OWN = (DIM + 31) / 32;  // columns of a lane
constexpr int OWN_VECTORS = (VECTORS + 31) / 32;
constexpr int RESIDENT_BLOCKS = 2 * 132;  // of a large GPU; more of them may not run at once
constexpr int PATIENCE = 64;              // looks of somewhat less than a microsecond
constexpr int COUNT_BITS = 8;             // of a ticket that holds marks as well
constexpr int MARKS = 24;                 // blocks of a row's heads that can leave one
constexpr int STRIP = 32;                 // columns of a warp that joins, one a lane
constexpr int STRIPS = HEADS * ((DIM + STRIP - 1) / STRIP);
constexpr int STAGES = (HEADS + CHUNK) / HEADS;  // chunks of 8 heads that fit where the rows lay

// By what two neighbouring lanes turn; a position outside the table turns them to NaN.
struct Turn {
    float c, s;
    bool there;

    __device__ __forceinline__ void apply(float& a, float& b, bool inverse) const {
        if (!there) {
            a = b = NAN_F32;
            return;
        }
        const float sine = inverse ? -s : s;
        const float first = a * c - b * sine;
        b = a * sine + b * c;
        a = first;
    }
};

struct Angles {
    const float* table;
    i32 position, R, P;

    // Of lanes DIM - R + 2 pair and the next.
    __device__ __forceinline__ Turn at(i32 pair) const {
        const bool there = position >= 0 && position < P;
        const float* const angle = table + (i64)position * R + 2 * pair;
        return {there ? angle[0] : 0.0f, there ? angle[1] : 0.0f, there};
    }
};

// One head, as products gave it, into shared memory as attention takes it; by a whole warp, of which
// each lane has the turn of its first pair, if there is one.
__device__ __forceinline__ void prepare_head(const float (&x)[OWN], const Angles& angles, Turn turn,
                                             float eps, float* tile) {
    const int lane = threadIdx.x % 32;
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) sum[i % 4] = fmaf(x[i], x[i], sum[i % 4]);
#pragma unroll
    for (int w = 0; w < 4; ++w) sum[w] = warp_sum(sum[w]);
    const float mean = ((sum[0] + sum[2]) + (sum[1] + sum[3])) / (float)DIM;
    const float factor = 1.0f / sqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < OWN; ++i)
        if (lane + 32 * i < DIM) tile[lane + 32 * i] = x[i] * factor;
    __syncwarp();
#pragma unroll 1
    for (i32 pair = lane; pair < angles.R / 2; pair += 32) {
        if (pair != lane) turn = angles.at(pair);
        float* const at = tile + DIM - angles.R + 2 * pair;
        turn.apply(at[0], at[1], false);
    }
}

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

// What a warp needs while it joins a strip.
struct alignas(16) Room {
    float value[MARKS][STRIP];
    Step step[MARKS];
    float total[MARKS];
};
constexpr int ROOMS = THREADS / 32 * sizeof(Room);
static_assert(ROOMS == ROOM_BYTES, "the declaration makes room for every warp");

__device__ __forceinline__ void store_pair(bf16* o, int column, float a, float b) {
    *reinterpret_cast<u32*>(o + column) = f32_to_bf16(a) | (u32)f32_to_bf16(b) << 16;
}

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
    const i32 turned = column - (DIM - angles.R);  // of even lanes, as R is
    const bool turns = lane % 2 == 0 && turned >= 0 && column < DIM;
    const Turn turn = turns ? angles.at(turned / 2) : Turn{};

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
    float a = divided(sum, fade, below), b = __shfl_down_sync(FULL_WARP, a, 1);
    if (turns) turn.apply(a, b, true);
    if (lane % 2 == 0 && column < DIM) store_pair(o, column, a, b);
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_decode(const float* q, const float* kv, const i32* ids, const float* sink,
                     const float* table, const i32* positions, bf16* o, float* power, float* total,
                     float* value, i32* ticket, i32 H, i32 N, i32 S, i32 R, i32 P, i64 ids_stride,
                     float scale, float eps) {
    extern __shared__ __align__(16) float tiles[];
    __shared__ Board<float> board;
    __shared__ Sink sinks[HEADS];
    __shared__ u32 given;  // what to join
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 chunk = blockIdx.x, B = gridDim.x, first_head = blockIdx.y * HEADS;
    const i32 head = first_head + warp;
    const i64 row = blockIdx.z, query = row * H + first_head;
    const i64 at = (row * B + chunk) * H + first_head;
    const bool mine = warp < HEADS && head < H;
    const bool sinks_mine = warp == THREADS / 32 - 1 && lane < HEADS && first_head + lane < H;
    float* const rows = tiles + HEADS * DIM;
    let_next_start();
    wait_for_previous();

    const Angles angles{table, positions[row], R, P};
    const float own_sink = sinks_mine ? sink[first_head + lane] : 0.0f;
    float x[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i)
        x[i] = mine && lane + 32 * i < DIM ? q[(query + warp) * DIM + lane + 32 * i] : 0.0f;
    Walk walk = {0, 0};
    const i32 count = max(gather(ids + row * ids_stride, S, N, chunk, walk, board), 0);
    if (count > 0) {
        // Before the rows, behind which it would queue.
        const Turn turn = mine && lane < R / 2 ? angles.at(lane) : Turn{};
        load_own_rows(kv, board.rows, count, rows);
        cp_async_commit();
        if (mine) {
            prepare_head(x, angles, turn, eps, tiles + warp * DIM);
        } else if (warp < HEADS) {
#pragma unroll 1
            for (int k = lane; k < DIM; k += 32) tiles[warp * DIM + k] = 0.0f;
        }
        __syncthreads();
        cp_async_wait<0>();
        __syncwarp();
        find_logits<float>(tiles, rows, count, scale, board);
        __syncthreads();
    }
    if (sinks_mine) sinks[lane].y = exp_scaled(own_sink, sinks[lane].power);
    if (warp < HEADS) {
        float here;
        const float top = weigh(count, board, here);
        if (lane == 0 && head < H) {
            power[at + warp] = top;
            total[at + warp] = here;
        }
    }
    __syncthreads();
    float sum[HEADS][2];
    sum_values(rows, count, board, sum);
    if (threadIdx.x < DIM / 2) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            if (first_head + h >= H) break;
            *(float2*)(value + (at + h) * DIM + 2 * threadIdx.x) = make_float2(sum[h][0],
                                                                               sum[h][1]);
        }
    }

    const bool together = gridDim.x * gridDim.y * gridDim.z <= RESIDENT_BLOCKS && B <= MARKS;
    const Tickets tickets{ticket + (row * ((H + 1) / 2) + blockIdx.y) * 2};
    __syncthreads();
    if (threadIdx.x == 0) {
        if (together)
            given = tickets.take(chunk, B);
        else
            given = add_ticket(tickets.at, 1) == B - 1;
    }
    __syncthreads();
    const i64 first_own = row * B * H + first_head;
    if (!together && given != 0 && mine) {
        const i64 own = first_own + warp;
        join_by_warp(power + own, total + own, value + own * DIM, sinks[warp], angles, tiles,
                     o + (query + warp) * DIM, B, H, query + warp);
    }
    Room& room = reinterpret_cast<Room*>(tiles)[warp];
#pragma unroll 1
    for (u32 left = together ? given : 0; left != 0; left &= left - 1) {
#pragma unroll 1
        for (i32 strip = __ffs((i32)left) - 1 + B * warp; strip < STRIPS;
             strip += B * (THREADS / 32)) {
            const i32 h = strip % HEADS;
            if (first_head + h >= H) continue;
            const i64 own = first_own + h;
            join_strip(power + own, total + own, value + own * DIM, sinks[h], angles,
                       strip / HEADS * STRIP, room, o + (query + h) * DIM, B, H, query + h);
        }
    }
    // A warp that has no strip, most often.
    if (threadIdx.x == THREADS - 32) tickets.leave(B);
}

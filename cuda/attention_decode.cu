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
// join is shared out before: a block has every B-th strip of 64 columns of the heads, and joins it as
// soon as it sees all tickets taken. It looks PATIENCE times, some tens of microseconds at most, then
// marks its strips as left; the block that takes the last ticket sees those marks, and joins what is
// left. A block whose mark comes after the last ticket sees that, and joins its own. So nobody depends
// on anybody, and who joins does not show. In a larger launch the last block joins alone, a warp a head,
// with several chunks on their way to shared memory.
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
constexpr int STRIP = 64;                 // columns of a warp that joins
constexpr int STRIPS = HEADS * ((DIM + STRIP - 1) / STRIP);
constexpr int STAGES = (HEADS + CHUNK) / HEADS;  // chunks of 8 heads that fit where the rows lay

struct Angles {
    const float* table;
    i32 position, R, P;

    // Lanes DIM - R + 2 pair and the next, turned; NaN for a position outside the table.
    __device__ __forceinline__ void turn(float& a, float& b, i32 pair, bool inverse) const {
        if (position < 0 || position >= P) {
            a = b = NAN_F32;
            return;
        }
        const float* const angle = table + (i64)position * R + 2 * pair;
        const float c = angle[0], s = inverse ? -angle[1] : angle[1];
        const float first = a * c - b * s;
        b = a * s + b * c;
        a = first;
    }
};

// One head, as products gave it, into shared memory as attention takes it; by a whole warp.
__device__ __forceinline__ void prepare_head(const float (&x)[OWN], const Angles& angles, float eps,
                                             float* tile) {
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
    for (i32 pair = lane; pair < angles.R / 2; pair += 32) {
        float* const at = tile + DIM - angles.R + 2 * pair;
        angles.turn(at[0], at[1], pair, false);
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

// Two neighbouring columns of a finished head, turned back and rounded.
__device__ __forceinline__ void store_pair(bf16* o, int column, float a, float b,
                                           const Angles& angles) {
    const i32 turned = column - (DIM - angles.R);
    if (turned >= 0) angles.turn(a, b, turned / 2, true);
    *reinterpret_cast<u32*>(o + column) = f32_to_bf16(a) | (u32)f32_to_bf16(b) << 16;
}

// The chunks of a strip of one head together, by a warp, two columns a lane. Past L1, which may hold
// older bytes than other blocks wrote.
__device__ __forceinline__ void join_strip(const float* power, const float* total,
                                           const float* value, float sink, const Angles& angles,
                                           int column, bf16* o, i32 B, i32 H, i64 row) {
    constexpr int TOGETHER = 16;  // chunks on their way at once
    const int lane = threadIdx.x % 32;
    const bool has = column < DIM;
    float sum[2] = {}, all = 0, reached = no_power<float>();
    for (i32 first = 0; first < B; first += TOGETHER) {
        const bool there = lane < TOGETHER && first + lane < B;
        const float powers = there ? __ldcg(power + (i64)(first + lane) * H) : 0.0f;
        const float totals = there ? __ldcg(total + (i64)(first + lane) * H) : 0.0f;
        float2 v[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
            v[i] = has && first + i < B
                       ? __ldcg((const float2*)(value + (i64)(first + i) * H * DIM + column))
                       : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            if (first + i >= B) break;
            float fade, chunk_fade;
            reached = meet(reached, __shfl_sync(FULL_WARP, powers, i), fade, chunk_fade);
            all = fold(all, fade, __shfl_sync(FULL_WARP, totals, i), chunk_fade);
            sum[0] = fold(sum[0], fade, v[i].x, chunk_fade);
            sum[1] = fold(sum[1], fade, v[i].y, chunk_fade);
        }
    }
    float fade;
    const float below = denominator(reached, all, sink, fade, row);
    if (has)
        store_pair(o, column, divided(sum[0], fade, below), divided(sum[1], fade, below), angles);
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
                                             const float* value, float sink, const Angles& angles,
                                             float* tiles, bf16* o, i32 B, i32 H, i64 row) {
    const int lane = threadIdx.x % 32;
    float* const tile = tiles + threadIdx.x / 32 * DIM;  // of the first stage
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage)
        fetch_values(value, tile + stage * HEADS * DIM, stage, B, H);
    float sum[OWN_VECTORS][4] = {}, all = 0, reached = no_power<float>();
    float powers = 0, totals = 0;  // lane i has those of chunk i of 32
    int stage = 0;
    for (i32 chunk = 0; chunk < B; ++chunk) {
        if (chunk % 32 == 0) {
            const bool there = chunk + lane < B;
            powers = there ? __ldcg(power + (i64)(chunk + lane) * H) : 0.0f;
            totals = there ? __ldcg(total + (i64)(chunk + lane) * H) : 0.0f;
        }
        const int free = stage == 0 ? STAGES - 1 : stage - 1;
        fetch_values(value, tile + free * HEADS * DIM, chunk + STAGES - 1, B, H);
        const float here = __shfl_sync(FULL_WARP, powers, chunk % 32);
        const float weight = __shfl_sync(FULL_WARP, totals, chunk % 32);
        float fade, chunk_fade;
        reached = meet(reached, here, fade, chunk_fade);
        all = fold(all, fade, weight, chunk_fade);
        cp_async_wait<STAGES - 1>();
#pragma unroll
        for (int i = 0; i < OWN_VECTORS; ++i) {
            const int at = 4 * (lane + 32 * i);
            if (at >= DIM) continue;
            const float4 v = *(const float4*)(tile + stage * HEADS * DIM + at);
            sum[i][0] = fold(sum[i][0], fade, v.x, chunk_fade);
            sum[i][1] = fold(sum[i][1], fade, v.y, chunk_fade);
            sum[i][2] = fold(sum[i][2], fade, v.z, chunk_fade);
            sum[i][3] = fold(sum[i][3], fade, v.w, chunk_fade);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    float fade;
    const float below = denominator(reached, all, sink, fade, row);
#pragma unroll
    for (int i = 0; i < OWN_VECTORS; ++i) {
        const int at = 4 * (lane + 32 * i);
        if (at >= DIM) continue;
#pragma unroll
        for (int half = 0; half < 4; half += 2)
            store_pair(o, at + half, divided(sum[i][half], fade, below),
                       divided(sum[i][half + 1], fade, below), angles);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_decode(const float* q, const float* kv, const i32* ids, const float* sink,
                     const float* table, const i32* positions, bf16* o, float* power, float* total,
                     float* value, i32* ticket, i32 H, i32 N, i32 S, i32 R, i32 P, i64 ids_stride,
                     float scale, float eps) {
    extern __shared__ __align__(16) float tiles[];
    __shared__ Board<float> board;
    __shared__ u32 given;  // what to join
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 chunk = blockIdx.x, B = gridDim.x, first_head = blockIdx.y * HEADS;
    const i32 head = first_head + warp;
    const i64 row = blockIdx.z, query = row * H + first_head;
    const i64 at = (row * B + chunk) * H + first_head;
    const bool mine = warp < HEADS && head < H;
    float* const rows = tiles + HEADS * DIM;
    let_next_start();
    wait_for_previous();

    float x[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i)
        x[i] = mine && lane + 32 * i < DIM ? q[(query + warp) * DIM + lane + 32 * i] : 0.0f;
    const Angles angles{table, positions[row], R, P};
    Walk walk = {0, 0};
    const i32 count = max(gather(ids + row * ids_stride, S, N, chunk, walk, board), 0);
    if (count > 0) {
        load_own_rows(kv, board.rows, count, rows);
        cp_async_commit();
        if (mine) {
            prepare_head(x, angles, eps, tiles + warp * DIM);
        } else if (warp < HEADS) {
            for (int k = lane; k < DIM; k += 32) tiles[warp * DIM + k] = 0.0f;
        }
        __syncthreads();
        cp_async_wait<0>();
        __syncwarp();
        find_logits<float>(tiles, rows, count, scale, board);
        __syncthreads();
    }
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
    const u32 blocks = given;
    if (!together && blocks != 0 && mine) {
        const i64 own = row * B * H + head;
        join_by_warp(power + own, total + own, value + own * DIM, sink[head], angles, tiles,
                     o + (query + warp) * DIM, B, H, query + warp);
    }
    for (i32 block = 0; together && block < B; ++block) {
        if (!(blocks >> block & 1)) continue;
        for (i32 strip = block + B * warp; strip < STRIPS; strip += B * (THREADS / 32)) {
            const i32 h = strip % HEADS;
            if (first_head + h >= H) continue;
            const i64 own = row * B * H + first_head + h;
            join_strip(power + own, total + own, value + own * DIM, sink[first_head + h], angles,
                       strip / HEADS * STRIP + 2 * lane, o + (query + h) * DIM, B, H, query + h);
        }
    }
    // A warp that has no strip, most often.
    if (threadIdx.x == THREADS - 32) tickets.leave(B);
}

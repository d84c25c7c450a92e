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
// Who joins the chunks of a row's HEADS heads depends on how many there are:
//
//   2 to 16     Their blocks are a cluster, and send each other what the join takes (attention_mail.cuh).
//               power, total and value are written as well, and nobody waits for them.
//   others, or  Every block takes a ticket. In a launch whose blocks run at the same time the join is
//   a card      shared out before: a block has every B-th strip of 32 columns of the heads, and joins it as
//   without     soon as it sees all tickets taken. It looks PATIENCE times, some tens of microseconds at
//   clusters    most, then marks its strips as left; the block that takes the last ticket sees those
//               marks, and joins what is left. A block whose mark comes after the last ticket sees that,
//               and joins its own. So nobody depends on anybody. In a larger launch the last block joins
//               alone, a warp a head, with several chunks on their way to shared memory.
//
// The bytes are the same. Loops are not unrolled where they need not be: in a step every launch finds the
// caches of instructions filled by others, and waits for its own.
#include "common/attention_mail.cuh"
#include "common/overlap.cuh"

constexpr int OWN = (DIM + 31) / 32;      // columns of a lane
constexpr int RESIDENT_BLOCKS = 2 * 132;  // of a large GPU; more of them may not run at once

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

extern "C" __global__ void BLOCKS_OF_A_LIST __launch_bounds__(THREADS, 2)
    attention_decode(const float* q, const float* kv, const i32* ids, const float* sink,
                     const float* table, const i32* positions, bf16* o, float* power, float* total,
                     float* value, i32* ticket, i32 H, i32 N, i32 S, i32 R, i32 P, i64 ids_stride,
                     float scale, float eps) {
    extern __shared__ __align__(16) float tiles[];
    __shared__ Board<float> board;
    __shared__ Sink sinks[HEADS];
    __shared__ u32 given;  // what to join
    __shared__ Mail mail;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 chunk = blockIdx.x, B = gridDim.x, first_head = blockIdx.y * HEADS;
    const i32 head = first_head + warp;
    const i64 row = blockIdx.z, query = row * H + first_head;
    const i64 at = (row * B + chunk) * H + first_head;
    const bool mine = warp < HEADS && head < H;
    const bool sinks_mine = warp == THREADS / 32 - 1 && lane < HEADS && first_head + lane < H;
    float* const rows = tiles + FRONT;
    Sums& sums = *reinterpret_cast<Sums*>(tiles);
    let_next_start();
    if (MAILED && threadIdx.x == THREADS - 32) open_inboxes(mail, chunk);
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
    if constexpr (MAILED) enter_cluster();
    if (sinks_mine) sinks[lane].y = exp_scaled(own_sink, sinks[lane].power);
    float top = 0, here = 0;
    if (warp < HEADS) top = weigh(count, board, here);
    if constexpr (MAILED) {
        await_cluster();
        if (warp < HEADS) send_weights(mail, chunk, warp, top, here);
    }
    if (mine && lane == 0) {
        power[at + warp] = top;
        total[at + warp] = here;
    }
    __syncthreads();
    float sum[HEADS][2];
    sum_values(rows, count, board, sum);
    if constexpr (MAILED) send_sums(mail, sums, chunk, sum);
    if (threadIdx.x < DIM / 2) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            if (first_head + h >= H) break;
            *(float2*)(value + (at + h) * DIM + 2 * threadIdx.x) = make_float2(sum[h][0],
                                                                               sum[h][1]);
        }
    }
    if constexpr (MAILED) {
        join_mail(mail, sums, chunk, H - first_head, sinks, angles, o + query * DIM, query);
        return;
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

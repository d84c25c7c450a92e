// hyper_step: what stands between two sub-blocks, before the first and behind the last, in one launch
//
//   hyper_step_open     the streams after a sub-block, and the next one's input and scaled mixes: the
//                       bytes of hyper_post, island_dots_f32, hyper_norm_scale_f32, and of the input of
//                       hyper_post_pre_norm_f32; y as its readers take it too, the bytes of cast_bf16
//                       (wide) and of act_quant_fp8 in groups of 128 (codes, scales)
//   hyper_step_streams  the same of streams that are there, as a stage receives them
//   hyper_step_entry    the same of streams that are all the embedding of the token; x_next has the bytes
//                       of movement_embed and movement_repeat
//   hyper_step_exit     streams collapsed for a head, and normed: the bytes of island_dots_f32,
//                       hyper_norm_scale_f32, hyper_head_gate, hyper_collapse and rms_norm_f32
//
// Post and comb are left open: the next launch balances the mixes in a block of its own, while its others
// have products to do (project, router_gate). Here it would be a long chain at the end.
//
//   z f32 [T, D]    x, x_next f32 [T, M, D]    post f32 [T, M]    comb f32 [T, M, M]
//   fn f32 [C, M D]    scale f32 [3]    base f32 [C]    gain f32 [D]    C = (2 + M) M, or M for exit
//   mix f32 [T, C]    y f32 [T, D]    wide bf16 [T, D]    codes e4m3 [T, D]    scales f32 [T, D / 128]
//   partial f32 [T, C + 1, ceil(M D / 256)]: sums of fn with 256 elements of a row; last, of squares
//
// Sums are those of the kernels named. A cluster of CLUSTER blocks has a row, in three steps; blocks send
// each other what the next step takes:
//
//   1. A block makes every CLUSTER-th part of the streams, 256 elements each, and multiplies it with
//      its columns of fn, which it asks for before it waits for the kernel before. The sums go to the
//      blocks that take them, the elements to those that have their columns in step 2.
//   2. In the order of rms_norm a row's columns are those of 16 warps: warp w has d with
//      d % 512 / 32 = w, lane by lane. A block has every CLUSTER-th of them: it finds the gates, as every
//      other one does, collapses its columns, and adds their squares. The squares go to all blocks, y to
//      the one that has its group in step 3. Of the mixes it leaves every CLUSTER-th.
//   3. A block has every CLUSTER-th group of 128 columns of y, norms it and puts it on its grid.
//
// On cards without clusters of that size (CLUSTERED 0) every block leaves its sums in `partial`, and one
// that learns from a ticket that it is the last of its row does steps 2 and 3 for the whole of it. The
// bytes are the same. The ticket must be 0 before a launch and is 0 after it.
//
// Build constants: STREAMS, PARTS (ceil(M D / 256), at most 256), PER_THREAD (ceil(D / 512), at
// most 16), CLUSTER (at most PARTS and 16).
#include "common/hyper_collapse.cuh"
#include "common/hyper_streams.cuh"
#include "common/overlap.cuh"
#include "common/tickets.cuh"

// streams: where the new ones lie in memory.
template <int Rows, class Source>
__device__ __forceinline__ void step(const Source& source, const Weights& w, const float* streams,
                                     const Written& out, i32* ticket, int D) {
    const int warp = (int)threadIdx.x / 32, count = STREAMS * D;
    const int rank = CLUSTERED ? cluster_rank() : (int)blockIdx.x % CLUSTER;
    const Place at = {(i64)(blockIdx.x / CLUSTER), rank, CLUSTERED ? rank : 0};
    Mail<Rows>& mail = mail_room<Rows>();
    let_next_start();
    if (CLUSTERED) {
        if (threadIdx.x == 0) open_inboxes(mail, rank, D);
        enter_cluster();
    }
    Columns ahead = {};
    load_columns(w.fn, warp, Rows, rank, 0, count, ahead);
    Floats<4> gain = {};
    if (CLUSTERED && warp < GROUPS_EACH) gain = gains_of(w.gain, at.team_rank + warp * TEAM, D);
    const GateWeights gate_weights = GateWeights::of(w);
    if (CLUSTERED) await_cluster();
    wait_for_previous();
    make_streams<Rows>(source, out.x, mail, at, D);
    __syncthreads();
    if (warp <= Rows) leave_sums(out, mail, at, warp, 0, count, ahead);
#pragma unroll 1
    for (int i = 1; i < ROUNDS<Rows> * LETTERS_EACH; ++i) {
        const int c = i / LETTERS_EACH * WARPS<Rows> + warp, first = i % LETTERS_EACH * LETTER;
        if (c > Rows) break;
        Columns weights = {};
        load_columns(w.fn, c, Rows, rank, first, count, weights);
        leave_sums(out, mail, at, c, first, count, weights);
    }
    if (CLUSTERED)
        await_mail(mail.first);
    else if (!is_last_block(ticket + at.row, CLUSTER))
        return;
    for (int own = warp; own < NORM_WARPS_EACH; own += WARPS<Rows>)
        collapse(w, gate_weights, out, mail, at, streams + at.row * count, own, D);
    if (!IS_EXIT<Rows>) leave_mixes(w, out, mail, at, count);
    if (CLUSTERED)
        await_mail(mail.second);
    else
        __syncthreads();
    for (int own = warp; own < GROUPS_EACH; own += WARPS<Rows>) {
        const int group = at.team_rank + own * TEAM;
        if (group * FP8_GROUP >= D) break;
        if (!CLUSTERED || own != warp) gain = gains_of(w.gain, group, D);
        finish_group(w, out, mail, at, own, gain, D);
    }
}

extern "C" __global__ void BLOCKS_OF_A_ROW __launch_bounds__(32 * WARPS<MIXES>, 1)
    hyper_step_open(const float* z, const float* x, const float* post, const float* comb,
                    const float* fn, const float* scale, const float* base, const float* gain,
                    float* x_next, float* mix, float* y, bf16* wide, u8* codes, float* scales,
                    float* partial, i32* ticket, i32 D, float mix_eps, float eps, float norm_eps) {
    step<MIXES>(AfterBlock{z, x, post, comb}, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                x_next, {x_next, nullptr, y, wide, codes, scales, mix, partial}, ticket, D);
}

extern "C" __global__ void BLOCKS_OF_A_ROW __launch_bounds__(32 * WARPS<MIXES>, 1)
    hyper_step_streams(const float* x, const float* fn, const float* scale, const float* base,
                       const float* gain, float* mix, float* y, bf16* wide, u8* codes,
                       float* scales, float* partial, i32* ticket, i32 D, float mix_eps, float eps,
                       float norm_eps) {
    step<MIXES>(Streams{x}, {fn, scale, base, gain, mix_eps, eps, norm_eps}, x,
                {nullptr, nullptr, y, wide, codes, scales, mix, partial}, ticket, D);
}

extern "C" __global__ void BLOCKS_OF_A_ROW __launch_bounds__(32 * WARPS<MIXES>, 1)
    hyper_step_entry(const bf16* table, const i32* tokens, const float* fn, const float* scale,
                     const float* base, const float* gain, float* x_next, float* mix, float* y,
                     bf16* wide, u8* codes, float* scales, float* partial, i32* ticket, i32 V,
                     i32 D, float mix_eps, float eps, float norm_eps) {
    step<MIXES>(Embedding{table, tokens, V}, {fn, scale, base, gain, mix_eps, eps, norm_eps},
                x_next, {x_next, nullptr, y, wide, codes, scales, mix, partial}, ticket, D);
}

extern "C" __global__ void BLOCKS_OF_A_ROW __launch_bounds__(32 * WARPS<STREAMS>, 1)
    hyper_step_exit(const float* x, const float* fn, const float* scale, const float* base,
                    const float* gain, float* collapsed, float* y, float* partial, i32* ticket,
                    i32 D, float mix_eps, float eps, float norm_eps) {
    step<STREAMS>(Streams{x}, {fn, scale, base, gain, mix_eps, eps, norm_eps}, x,
                  {nullptr, collapsed, y, nullptr, nullptr, nullptr, nullptr, partial}, ticket, D);
}

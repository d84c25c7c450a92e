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
#include "common/cluster.cuh"
#include "common/fp8_groups.cuh"
#include "common/mixing.cuh"
#include "common/overlap.cuh"
#include "common/sources.cuh"
#include "common/tickets.cuh"

#ifndef CLUSTERED
#define CLUSTERED HAS_CLUSTERS
#endif
#if CLUSTERED
#define BLOCKS_OF_A_ROW CLUSTER_OF(CLUSTER)
#else
#define BLOCKS_OF_A_ROW
#endif

constexpr int NORM_WARPS = 16;  // of rms_norm
constexpr int NORM_THREADS = 32 * NORM_WARPS;
constexpr int FP8_GROUP = 128;                               // columns
constexpr int PARTS_EACH = (PARTS + CLUSTER - 1) / CLUSTER;  // of a block
constexpr int TEAM = CLUSTERED ? CLUSTER : 1;                // blocks of steps 2 and 3
constexpr int NORM_WARPS_EACH = NORM_WARPS / TEAM;
constexpr int GROUPS_EACH = (4 * PER_THREAD + TEAM - 1) / TEAM;
static_assert(NORM_WARPS % CLUSTER == 0, "blocks have equally many of rms_norm's warps");

constexpr int MOST_WARPS = 25;  // of 80 registers
// Sums of a warp, of each part, and warps, where a product has that many rows of fn.
template <int Rows>
constexpr int ROUNDS = (Rows + MOST_WARPS) / MOST_WARPS;
template <int Rows>
constexpr int WARPS = (Rows + ROUNDS<Rows>) / ROUNDS<Rows> < 8
                          ? 8
                          : (Rows + ROUNDS<Rows>) / ROUNDS<Rows>;
// Whether a head comes behind, and no sub-block: it takes one format, and has nothing to mix.
template <int Rows>
constexpr bool IS_EXIT = Rows == STREAMS;

struct Weights {
    const float *fn, *scale, *base, *gain;
    float mix_eps, eps, norm_eps;
};
struct Written {
    float *x, *collapsed, *y;
    bf16* wide;
    u8* codes;
    float *scales, *mix, *partial;
};

// What the blocks of a cluster send each other.
constexpr int LETTER = 4;                                         // parts
constexpr int LETTERS_EACH = (PARTS_EACH + LETTER - 1) / LETTER;  // of a block, for a sum
template <int Rows>
struct Mail {
    Inbox first, second;  // of step 1; of step 2
    alignas(16) float sums[Rows + 1][CLUSTERED ? CLUSTER : 1][LETTERS_EACH * LETTER];
    alignas(16) float columns[CLUSTERED ? NORM_WARPS_EACH : 1][PER_THREAD][STREAMS][32];
    alignas(16) float y[GROUPS_EACH][FP8_GROUP];
    float squares[NORM_WARPS];
    // Of the block's own.
    alignas(16) float fresh[LETTERS_EACH * LETTER][STEP];
    alignas(16) float collapsed[NORM_WARPS_EACH][PER_THREAD][32];
};

template <int Rows>
__device__ __forceinline__ Mail<Rows>& mail_room() {
    extern __shared__ __align__(16) u8 mail_bytes[];
    return *reinterpret_cast<Mail<Rows>*>(mail_bytes);
}

// A block's place among those of its row, and then among those of steps 2 and 3.
struct Place {
    i64 row;
    int rank, team_rank;
};

// ------------------------------------------------------------------------ step 1: streams and sums

__device__ __forceinline__ int part_of(int rank, int own) { return rank + own * CLUSTER; }

// What a lane multiplies with row c of fn: its weights in LETTER parts of the block from `first` on.
using Columns = Floats<4>[LETTER][2];

__device__ __forceinline__ void load_columns(const float* fn, int c, int rows, int rank, int first,
                                             int count, Columns& weights) {
#pragma unroll
    for (int i = 0; i < LETTER; ++i) {
        const int k = part_of(rank, first + i) * STEP + (int)threadIdx.x % 32 * LANE_ELEMENTS;
        if (c >= rows || k >= count) continue;
        weights[i][0] = load_floats<4>(fn + (i64)c * count + k);
        weights[i][1] = load_floats<4>(fn + (i64)c * count + k + 4);
    }
}

// The streams go to x unless that is null.
template <int Rows, class Source>
__device__ __forceinline__ void make_streams(const Source& source, float* x, Mail<Rows>& mail,
                                             const Place& at, int D) {
    constexpr int QUADS = PARTS_EACH * STEP / 4;
    const int count = STREAMS * D;
#pragma unroll
    for (int first = 0; first < QUADS; first += 32 * WARPS<Rows>) {
        const int i = 4 * (first + (int)threadIdx.x), own = i / STEP;
        const int k = part_of(at.rank, own) * STEP + i % STEP;
        if (own >= PARTS_EACH || k >= count) continue;
        const int m = stream_of(k, D), d = k - m * D, warp = d % NORM_THREADS / 32;
        const Floats<4> four = source.four(at.row, D, m, d);
        store_floats(mail.fresh[own] + i % STEP, four);
        if (x != nullptr) store_floats(x + at.row * count + k, four);
        if (CLUSTERED)
            send(mail.first, &mail.columns[warp / TEAM][d / NORM_THREADS][m][d % 32], warp % TEAM,
                 four.at);
    }
}

// Whether a block takes sum c: all take those of the gates and the squares, one the others.
template <int Rows>
__device__ __forceinline__ bool takes(int rank, int c) {
    return c < STREAMS || c == Rows || c % TEAM == rank;
}

// Sum c of LETTER parts of the block, from `first` on, by a warp, to the blocks that take it.
template <int Rows>
__device__ __forceinline__ void leave_sums(const Written& out, Mail<Rows>& mail, const Place& at,
                                           int c, int first, int count, const Columns& weights) {
    const int lane = threadIdx.x % 32;
    float* const to = out.partial + (at.row * (Rows + 1) + c) * PARTS;
    float sums[LETTER];
#pragma unroll
    for (int i = 0; i < LETTER; ++i) {
        const int part = part_of(at.rank, first + i);
        Floats<4> v[2] = {};
        if (part * STEP + lane * LANE_ELEMENTS < count) {
            v[0] = load_floats<4>(mail.fresh[first + i] + lane * LANE_ELEMENTS);
            v[1] = load_floats<4>(mail.fresh[first + i] + lane * LANE_ELEMENTS + 4);
        }
        float sum = 0.0f;
        // Lanes past the end multiply zeros, which leaves their +0 as it is.
#pragma unroll
        for (int e = 0; e < LANE_ELEMENTS; ++e) {
            const float value = v[e / 4].at[e % 4];
            sum = fmaf(c < Rows ? weights[i][e / 4].at[e % 4] : value, value, sum);
        }
        sums[i] = warp_sum(sum);
        if (lane == 0 && part < PARTS) to[part] = sums[i];
    }
    if constexpr (CLUSTERED)
        if (lane < CLUSTER && takes<Rows>(lane, c))
            send(mail.first, mail.sums[c][at.rank] + first, lane, sums);
}

// ------------------------------------------------------------------------ step 2: gates and columns

// A sum of the row, by a warp. What other blocks wrote to memory is read past L1, which may hold older
// bytes.
template <int Rows>
__device__ __forceinline__ float total_of(const Mail<Rows>& mail, const Written& out,
                                          const Place& at, int c) {
    const float* const from = out.partial + (at.row * (Rows + 1) + c) * PARTS;
    float sum = 0.0f;
#pragma unroll
    for (int first = 0; first < PARTS; first += 32) {
        const int part = first + (int)threadIdx.x % 32;
        if (part < PARTS)
            sum += CLUSTERED ? mail.sums[c][part % CLUSTER][part / CLUSTER] : __ldcg(from + part);
    }
    return warp_sum(sum);
}

// What a lane makes the gate of its stream with.
struct GateWeights {
    float scale, base;

    static __device__ __forceinline__ GateWeights of(const Weights& w) {
        const int lane = threadIdx.x % 32;
        return {w.scale[0], lane < STREAMS ? w.base[lane] : 0.0f};
    }
};

// The gates of a row, on every lane.
template <int Rows>
__device__ __forceinline__ void gates_of(const Weights& w, const GateWeights& mine,
                                         const Written& out, const Mail<Rows>& mail,
                                         const Place& at, int count, float (&gates)[STREAMS]) {
    const int lane = threadIdx.x % 32;
    const float squares = total_of(mail, out, at, Rows);
    float own = 0.0f;
#pragma unroll
    for (int m = 0; m < STREAMS; ++m) {
        const float total = total_of(mail, out, at, m);
        if (lane == m) own = total;
    }
    own = gate(scaled(own, squares, count, w.mix_eps), mine.scale, mine.base) + w.eps;
#pragma unroll
    for (int m = 0; m < STREAMS; ++m) gates[m] = __shfl_sync(FULL_WARP, own, m);
}

// The columns of one of rms_norm's warps. x: the row's streams where they lie in memory.
template <int Rows>
__device__ __forceinline__ void collapse(const Weights& w, const GateWeights& mine,
                                         const Written& out, Mail<Rows>& mail, const Place& at,
                                         const float* x, int own, int D) {
    const int lane = threadIdx.x % 32, norm_warp = at.team_rank + own * TEAM;
    float gates[STREAMS];
    gates_of(w, mine, out, mail, at, STREAMS * D, gates);
    float sum = 0.0f;
#pragma unroll(PER_THREAD > 8 ? 2 : 8)
    for (int q = 0; q < PER_THREAD; ++q) {
        const int d = q * NORM_THREADS + norm_warp * 32 + lane;
        if (d >= D) continue;
        float y = 0.0f;
#pragma unroll
        for (int m = 0; m < STREAMS; ++m) {
            const float v = CLUSTERED ? mail.columns[own][q][m][lane] : __ldcg(x + (i64)m * D + d);
            y = fmaf(gates[m], v, y);
        }
        sum = fmaf(y, y, sum);
        mail.collapsed[own][q][lane] = y;
        if (IS_EXIT<Rows>) out.collapsed[at.row * D + d] = y;
    }
    sum = warp_sum(sum);
    float* const squares = &mail.squares[norm_warp];
    if (CLUSTERED && lane < CLUSTER) send(mail.second, squares, lane, sum);
    if (!CLUSTERED && lane == 0) *squares = sum;
    __syncwarp();
#pragma unroll
    for (int first = 0; first < PER_THREAD * 8; first += 32) {
        const int i = first + lane, q = i / 8;
        const int d = q * NORM_THREADS + norm_warp * 32 + i % 8 * 4, group = d / FP8_GROUP;
        if (q >= PER_THREAD || d >= D) continue;
        const Floats<4> four = load_floats<4>(mail.collapsed[own][q] + i % 8 * 4);
        float* const to = mail.y[group / TEAM] + d % FP8_GROUP;
        if (CLUSTERED)
            send(mail.second, to, group % TEAM, four.at);
        else
            store_floats(to, four);
    }
}

// Scaled mixes, every TEAM-th, by the warps behind those that collapse.
template <int Rows>
__device__ __forceinline__ void leave_mixes(const Weights& w, const Written& out,
                                            const Mail<Rows>& mail, const Place& at, int count) {
    constexpr int OTHERS = WARPS<Rows> > NORM_WARPS_EACH ? WARPS<Rows> - NORM_WARPS_EACH : 1;
    const int own = (int)threadIdx.x / 32 - (WARPS<Rows> - OTHERS);
    const int first = at.team_rank + own * TEAM;
    if (own < 0 || first >= Rows) return;
    const float squares = total_of(mail, out, at, Rows);
    for (int c = first; c < Rows; c += OTHERS * TEAM) {
        const float total = total_of(mail, out, at, c);
        if (threadIdx.x % 32 == 0)
            out.mix[at.row * MIXES + c] = scaled(total, squares, count, w.mix_eps);
    }
}

// ------------------------------------------------------------------------ step 3: groups of y

// Four neighbouring gains of a lane.
__device__ __forceinline__ Floats<4> gains_of(const float* gain, int group, int D) {
    const int d = group * FP8_GROUP + (int)threadIdx.x % 32 * 4;
    Floats<4> value = {};
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (d + e < D) value.at[e] = gain[d + e];
    return value;
}

// A group of y as its readers take it, by a warp: a lane has four neighbours.
template <int Rows>
__device__ __forceinline__ void finish_group(const Weights& w, const Written& out,
                                             const Mail<Rows>& mail, const Place& at, int own,
                                             const Floats<4>& gain, int D) {
    const int lane = threadIdx.x % 32, group = at.team_rank + own * TEAM;
    const int column = group * FP8_GROUP + lane * 4;
    const i64 d = at.row * D + column;
    const float squares = warp_sum(lane < NORM_WARPS ? mail.squares[lane] : 0.0f);
    const float factor = 1.0f / sqrtf(squares / (float)D + w.norm_eps);
    Floats<4> y = {};
    if (column < D) y = load_floats<4>(&mail.y[own][lane * 4]);
#pragma unroll
    for (int e = 0; e < 4; ++e) y.at[e] = gain.at[e] * (y.at[e] * factor);
    if (column < D) store_floats(out.y + d, y);
    if constexpr (!IS_EXIT<Rows>) {
        float amax = FP8_FLOOR;
#pragma unroll
        for (int e = 0; e < 4; ++e) amax = fmaxf(amax, finite_magnitude(y.at[e]));
        const int k = fp8_exponent_of(warp_max_positive(amax));
        const float inverse = exp2_of(-k);
        u32 codes = 0, wide[2] = {};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            codes |= (u32)fp8_code(y.at[e], inverse) << 8 * e;
            wide[e / 2] |= (u32)f32_to_bf16(y.at[e]) << 16 * (e % 2);
        }
        *(uint2*)(out.wide + d) = make_uint2(wide[0], wide[1]);
        *(u32*)(out.codes + d) = codes;
        if (lane == 0) out.scales[at.row * (D / FP8_GROUP) + group] = exp2_of(k);
    }
}

// ------------------------------------------------------------------------ all steps

// Whether this block is the last of its row to come here.
__device__ __forceinline__ bool is_last(i32* ticket) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) last = take_last_ticket(ticket, CLUSTER);
    __syncthreads();
    return last;
}

// Of D elements in chunks that are dealt to the blocks in turn, period by period, how many a block has.
__device__ __forceinline__ int dealt(int D, int chunk, int period, int rank) {
    if (D % period == 0) return D / TEAM;
    int count = 0;
    for (int first = 0; first < D; first += period)
        for (int d = first + rank * chunk; d < min(D, first + period); d += TEAM * chunk)
            count += min(chunk, D - d);
    return count;
}

// Bytes that come for step 2, and for step 3.
template <int Rows>
__device__ __forceinline__ void open_inboxes(Mail<Rows>& mail, int rank, int D) {
    int sums = 0;
#pragma unroll
    for (int c = 0; c <= Rows; ++c) sums += takes<Rows>(rank, c);
    const int columns = dealt(D, 32, NORM_THREADS, rank);
    open_inbox(mail.first, 4 * (LETTER * LETTERS_EACH * CLUSTER * sums + STREAMS * columns));
    open_inbox(mail.second, 4 * (NORM_WARPS + dealt(D, FP8_GROUP, TEAM * FP8_GROUP, rank)));
}

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
    else if (!is_last(ticket + at.row))
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

// Steps 2 and 3 of hyper_step: gates and the columns that they collapse; groups of y, normed and on their
// grid.
//
// Build constants: those of common/hyper_mail.cuh.
#pragma once

#include "common/fp8_groups.cuh"
#include "common/hyper_mail.cuh"

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

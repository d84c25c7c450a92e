// router: the A experts of a token, their weights, and their slots by ascending expert id
//
//   router        raw f32 [T, E]    bias f32 [E]
//   router_hash   raw f32 [T, E]    table i64 [V, A]    tokens i32 [T]
//                 each: ids i32 [T, A]    weights f32 [T, A]    order i32 [T, A]
//
// score = sqrt(softplus(raw)), softplus(g) = g above 20, else ln(1 + e^g). router takes the A experts
// with the largest score + bias, the largest first, equals by ascending id; router_hash takes those
// that the table names for the token. weight = score / (sum of the A scores) * scale: the bias
// selects and never weighs. order lists the slots by ascending expert id, equals by slot.
//
// Selection is discontinuous, so what it compares is fixed: a score is computed in double to a few
// 1e-16 and rounded to f32 once, hence the f32 nearest to the exact score, and score + bias is one
// f32 addition. Scores of very negative raw are e^(raw/2) down to raw = -207, where f32 ends; when
// all A scores are zero, every weight is scale / A. The sum is f32 in the order of selection.
//
// One block a token. router: all threads score, then the first warp selects, A rounds of a maximum
// under a total order, so no timing shows. NaN ranks below every number, by ascending id; a NaN
// that is chosen makes the weights of its token NaN. Ids come from memory in router_hash, so they
// are checked: an expert or token that does not exist gives id -1 and weights of NaN, never a read
// outside the arrays.
//
// Build constant: PER_LANE, experts of a lane: ceil(E / 32), at most 32.
#include "common/routing.cuh"

static_assert(PER_LANE >= 1 && PER_LANE <= 32, "a lane keeps its experts in one mask of 32 bits");

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    router(const float* raw, const float* bias, i32* ids, float* weights, i32* order, i32 E, i32 A,
           float scale) {
    __shared__ float scores[32 * PER_LANE], keys[32 * PER_LANE];
    for (i32 e = threadIdx.x; e < E; e += THREADS) {
        const float score = score_of(raw[(i64)blockIdx.x * E + e]);
        scores[e] = score;
        keys[e] = score + bias[e];
        PROBE("score", (i64)blockIdx.x * E + e, score);
        PROBE("key", (i64)blockIdx.x * E + e, keys[e]);
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;

    const i32 lane = threadIdx.x;
    float key[PER_LANE];
#pragma unroll
    for (i32 i = 0; i < PER_LANE; ++i) key[i] = 32 * i + lane < E ? keys[32 * i + lane] : NAN_F32;
    u32 taken = 0;
    i32 id = 0;
    for (i32 a = 0; a < A; ++a) {
        Best best = reduce::ArgMax::empty();
#pragma unroll
        for (i32 i = 0; i < PER_LANE; ++i) {
            const i32 e = 32 * i + lane;
            if (e < E && !(taken >> i & 1)) best = reduce::ArgMax::fold(best, {key[i], e});
        }
        best = warp_argmax(best.value, best.index);
        if (best.index % 32 == lane) taken |= 1u << (best.index / 32);
        if (a == lane) id = best.index;
    }
    finish(id, scores[id], scale, blockIdx.x, A, ids, weights, order);
}

extern "C" __global__ void __launch_bounds__(32)
    router_hash(const float* raw, const i64* table, const i32* tokens, i32* ids, float* weights,
                i32* order, i32 E, i32 A, i32 V, float scale) {
    const i32 token = tokens[blockIdx.x];
    i32 id = -1;
    if (threadIdx.x < A && token >= 0 && token < V) {
        const i64 stored = table[(i64)token * A + threadIdx.x];
        if (stored >= 0 && stored < E) id = (i32)stored;
    }
    const float score = id < 0 ? NAN_F32 : score_of(raw[(i64)blockIdx.x * E + id]);
    finish(id, score, scale, blockIdx.x, A, ids, weights, order);
}

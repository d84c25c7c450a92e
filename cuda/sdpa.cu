// sdpa: grouped-query attention of rows over a range of keys each
//
//   q f32 [T, H, K]    k, v f32 [N, G, K]    y f32 [T, H, K]    query head h reads key head h / (H/G)
//   sdpa_full   row t sees keys 0 .. last[t] - 1
//   sdpa_scan   keys first[t] .. last[t] - 1; walks the others too and masks them
//   sdpa_clip   the same keys, walks only their tiles
//   y = sum p_j v_j,  p = softmax(scale q . k_j).  A row without keys gives zeros.
//
// One block a row and query head. Keys go in tiles of 128 whose borders are multiples of 128,
// whatever the range: thread j of the block scores key j of the tile with one fmaf chain over the
// lanes; maximum and sum of a tile are block reductions; thread d adds lane d's values in ascending
// key order. The running sums are rescaled once a tile. So a row's bytes depend on its own range
// alone, and a tile without visible keys, walked or not, leaves no trace: scan and clip agree.
//
// A NaN score, or one of +inf, makes its row NaN.
//
// Values of masked keys are not read, so that a row nobody has written yet leaves no trace.
#include "common/reduce.cuh"

constexpr int TILE = 128;  // threads of a block, and keys of a tile
constexpr int LANES = (WIDTH + TILE - 1) / TILE;

static_assert(WIDTH % 4 == 0, "keys are read four lanes at a time");

__device__ __forceinline__ float score(const float* q, const float* k) {
    float sum = 0.0f;
#pragma unroll 8
    for (int d = 0; d < WIDTH; d += 4) {
        const float4 four = *reinterpret_cast<const float4*>(k + d);
        sum = fmaf(q[d], four.x, sum);
        sum = fmaf(q[d + 1], four.y, sum);
        sum = fmaf(q[d + 2], four.z, sum);
        sum = fmaf(q[d + 3], four.w, sum);
    }
    return sum;
}

__device__ __forceinline__ void attend(const float* q, const float* k, const float* v, float* y,
                                       int first, int last, int start, int H, int G, float scale) {
    __shared__ float own[WIDTH], weight[TILE], scratch[32];
    const int row = blockIdx.x, head = blockIdx.y, thread = threadIdx.x;
    const i64 at = ((i64)row * H + head) * WIDTH, key_stride = (i64)G * WIDTH;
    const i64 group = (i64)(head / (H / G)) * WIDTH;
    for (int d = thread; d < WIDTH; d += TILE) own[d] = q[at + d];
    __syncthreads();

    float top = -INF_F32, total = 0.0f, sum[LANES] = {};
    for (int tile = start / TILE * TILE; tile < last; tile += TILE) {
        const int key = tile + thread;
        const bool seen = key >= first && key < last;
        const float s = seen ? score(own, k + key * key_stride + group) * scale : -INF_F32;
        // A NaN counts as infinity here, or a tile of nothing but NaN would pass for an unseen one.
        const float tile_top = block_max(s == s ? s : INF_F32, scratch);
        if (tile_top == -INF_F32) continue;  // the same for every thread
        const float now = fmaxf(top, tile_top);
        const float p = seen ? exp_exact(s - now) : 0.0f;
        weight[thread] = p;
        const float factor = exp_exact(top - now);
        top = now;
        total = total * factor + block_sum(p, scratch);
        const int count = min(TILE, last - tile);
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const int d = thread + i * TILE;
            if (d >= WIDTH) continue;
            sum[i] *= factor;
            const float* values = v + tile * key_stride + group + d;
#pragma unroll 8
            for (int j = max(first - tile, 0); j < count; ++j)
                sum[i] = fmaf(weight[j], values[j * key_stride], sum[i]);
        }
        __syncthreads();  // the weights are read before the next tile writes them
    }
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        const int d = thread + i * TILE;
        if (d < WIDTH) y[at + d] = total == 0.0f ? 0.0f : sum[i] / total;
    }
}

extern "C" __global__ void __launch_bounds__(TILE, 1)
    sdpa_full(const float* q, const float* k, const float* v, const i32* last, float* y, i32 H,
              i32 N, i32 G, float scale) {
    attend(q, k, v, y, 0, min(last[blockIdx.x], N), 0, H, G, scale);
}

extern "C" __global__ void __launch_bounds__(TILE, 1)
    sdpa_scan(const float* q, const float* k, const float* v, const i32* first, const i32* last,
              float* y, i32 H, i32 N, i32 G, float scale) {
    attend(q, k, v, y, first[blockIdx.x], min(last[blockIdx.x], N), 0, H, G, scale);
}

extern "C" __global__ void __launch_bounds__(TILE, 1)
    sdpa_clip(const float* q, const float* k, const float* v, const i32* first, const i32* last,
              float* y, i32 H, i32 N, i32 G, float scale) {
    const int begin = max(first[blockIdx.x], 0);
    attend(q, k, v, y, begin, min(last[blockIdx.x], N), begin, H, G, scale);
}

// finish: what follows the products of a layer's front, a block for every row and piece of work
//
//   latent    compact[t] = rms_norm(latent[t]) in bf16                           f32 [T, Q] to bf16
//   keys      kvc[ring_rows[t]] = FP8(rope(rms_norm(kv[t])))                     f32 [T, K]
//   blocks    kvc[ring + index_rows[t]] = FP8(rope(rms_norm(pool of the block))) raw rows [S, c K]
//   index     keys[index_rows[t]] = FP4(Hadamard(rope(rms_norm(pool of the block))))      [S, 2 I],
//             in bf16, which holds what FP4 leaves
//
//   finish_window    latent and keys: a layer without blocks
//   finish_blocks    and blocks, c = 1
//   finish_indexed   and blocks with c = 2, and index
//
// The bytes are those of rms_norm_f32 and cast_bf16; rms_norm_f32, rope, act_quant_fp8_inplace in
// groups of 64 before the R lanes that turn, and movement_scatter; compressor_pool_at, then the same;
// and with hadamard, act_quant_fp4_inplace and movement_scatter_bf16 at the end. A block of C rows is
// pooled where one ends at positions[t], and turned by firsts[t]. A row without a place, or of no
// block, writes nothing.
//
// Sums of squares are those of 512 threads. A row lies in shared memory between the steps.
//
// Build constants: KIND (0, 1 or 2: which of the three is built), LATENT (Q), WIDTH (K), INDEX_WIDTH (I), MAIN_PARTS, INDEX_PARTS (threads that pool a
// channel), CLAMP_ONLY (as in act_quant).
#include "common/butterflies.cuh"
#include "common/convert.cuh"
#include "common/overlap.cuh"
#include "common/pool.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int GROUP = 64;
constexpr u32 MANTISSA_OF_448 = 0x600000;  // 448 = 1.75 * 2^8
constexpr u32 MANTISSA_OF_6 = 0x400000;    // 6 = 1.5 * 2^2

enum { WINDOW, BLOCKS, INDEXED };
enum { LATENT_TASK, KEYS_TASK, BLOCKS_TASK, INDEX_TASK };

// A thread's elements of a row: its number, and every THREADS-th after it.
template <int Length>
struct Lanes {
    static constexpr int PER = (Length + THREADS - 1) / THREADS;
    float v[PER];

    static __device__ __forceinline__ int at(int i) { return threadIdx.x + i * THREADS; }
    __device__ __forceinline__ void load(const float* from) {
#pragma unroll
        for (int i = 0; i < PER; ++i) v[i] = at(i) < Length ? from[at(i)] : 0.0f;
    }
};

template <int Length>
__device__ __forceinline__ void norm(Lanes<Length>& x, const Lanes<Length>& gain, float eps) {
    __shared__ float scratch[32];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < x.PER; ++i) sum = fmaf(x.v[i], x.v[i], sum);
    const float mean = block_sum(sum, scratch) / (float)Length;
    const float factor = 1.0f / sqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < x.PER; ++i) x.v[i] = gain.v[i] * (x.v[i] * factor);
}

// (cos, sin) pairs of positions.
struct Table {
    const float* angles;
    int R, P;
};

// What a pair of neighbouring lanes is turned by; NaN at a position outside the table.
struct Angle {
    float c, s;
};
__device__ __forceinline__ Angle angle_of(const Table& table, int position, int pair) {
    if (position < 0 || position >= table.P || pair >= table.R / 2) return {NAN_F32, NAN_F32};
    const float* const angle = table.angles + (i64)position * table.R + 2 * pair;
    return {angle[0], angle[1]};
}
__device__ __forceinline__ void turn(const Angle& angle, const float* from, float* to) {
    const float a = from[0], b = from[1];
    const bool known = angle.c == angle.c;
    to[0] = known ? a * angle.c - b * angle.s : NAN_F32;
    to[1] = known ? a * angle.s + b * angle.c : NAN_F32;
}

__device__ __forceinline__ float finite_magnitude(float x) {
    const float magnitude = fabsf(x);
    return magnitude <= MAX_F32 ? magnitude : 0.0f;
}

__device__ __forceinline__ float through_fp8(float x, int k) {
    const float scale = exp2_of(k), limit = 448.0f * scale;
    if (CLAMP_ONLY) return x > limit ? limit : x < -limit ? -limit : x;
    return e4m3_to_f32(f32_to_e4m3(x * exp2_of(-k))) * scale;
}

// The pair that a thread turns first: the last threads begin, whose warps have no group.
__device__ __forceinline__ int first_pair() { return THREADS - 1 - (int)threadIdx.x; }

// The row of keys in shared memory, written to its place. first: what first_pair() is turned by.
__device__ __forceinline__ void write_keys(const float* row, const Table& table, int position,
                                           const Angle& first, float* to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, plain = WIDTH - table.R;
    for (int group = warp; group < plain / GROUP; group += WARPS) {
        const int at = group * GROUP + lane;
        const float one = row[at], other = row[at + 32];
        const float amax = fmaxf(fmaxf(1e-4f, finite_magnitude(one)), finite_magnitude(other));
        const int k = scale_exponent(warp_max(amax), MANTISSA_OF_448) - 8;
        to[at] = through_fp8(one, k);
        to[at + 32] = through_fp8(other, k);
    }
    for (int pair = first_pair(); pair < table.R / 2; pair += THREADS)
        turn(pair < THREADS ? first : angle_of(table, position, pair), row + plain + 2 * pair,
             to + plain + 2 * pair);
}

// The row of an indexer's key in shared memory, written to its place.
__device__ __forceinline__ void write_index(float* row, const Table& table, int position,
                                            float scale, bf16* to) {
    constexpr int PER = INDEX_WIDTH / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int pair = threadIdx.x; pair < table.R / 2; pair += THREADS) {
        float* const at = row + INDEX_WIDTH - table.R + 2 * pair;
        turn(angle_of(table, position, pair), at, at);
    }
    __syncthreads();
    if (warp == 0) {
        float v[PER];
#pragma unroll
        for (int i = 0; i < PER; ++i) v[i] = row[lane * PER + i];
        butterflies<32>(v, lane);
#pragma unroll
        for (int i = 0; i < PER; ++i) row[lane * PER + i] = v[i] * scale;
    }
    __syncthreads();
    for (int group = warp; group < PER; group += WARPS) {
        const float x = row[32 * group + lane];
        const float amax = warp_max(fmaxf(6.0f * 0x1p-126f, finite_magnitude(x)));
        const int k = scale_exponent(amax, MANTISSA_OF_6) - 2;
        const float value = e2m1_to_f32(f32_to_e2m1(fabsf(x) * exp2_of(-k))) * exp2_of(k);
        to[32 * group + lane] = f32_to_bf16(x != x ? x : x < 0.0f ? -value : value);
    }
}

// Raw rows of a compressor in their ring, and what finishes a block of them.
struct Compressor {
    const float *kv, *score, *ape, *gain;
    int C, S;
};

// The block that ends at a position, pooled and normalised, into shared memory.
template <int Length, int Parts, int Overlap>
__device__ __forceinline__ void pool_row(const Compressor& w, int position,
                                         const Lanes<Length>& gain, float eps, float* row) {
    constexpr int CHANNELS = THREADS / Parts;
    const int start = position - (w.C - 1);
    const RawRows<Overlap> rows = {w.kv, w.score, w.ape, w.C, Length, w.S, start % w.S, start > 0};
    for (int first = 0; first < Length; first += CHANNELS) {
        const int channel = first + (int)threadIdx.x % CHANNELS;
        const float value = pooled<Parts, CHANNELS>(rows, channel);
        if ((int)threadIdx.x < CHANNELS && channel < Length) row[channel] = value;
        __syncthreads();
    }
    Lanes<Length> x;
    x.load(row);
    norm(x, gain, eps);
#pragma unroll
    for (int i = 0; i < x.PER; ++i)
        if (x.at(i) < Length) row[x.at(i)] = x.v[i];
    __syncthreads();
}

struct Places {
    const i32 *positions, *ring_rows, *firsts, *index_rows;
};

__device__ __forceinline__ bool ends_block(int position, int C) {
    const int start = position - (C - 1);
    return start >= 0 && start % C == 0;
}

__device__ __forceinline__ void finish(const float* latent, const float* q_gain, const float* kv,
                                       const float* kv_gain, const Table& table,
                                       const Places& places, bf16* compact, float* kvc, int N,
                                       int ring, const Compressor& main, const Compressor& index,
                                       bf16* keys, int B, float scale, float eps) {
    __shared__ float row[WIDTH > INDEX_WIDTH ? WIDTH : INDEX_WIDTH];
    let_next_start();
    const int t = blockIdx.x;
    if (blockIdx.y == LATENT_TASK) {
        Lanes<LATENT> gain, x;
        gain.load(q_gain);
        wait_for_previous();
        x.load(latent + (i64)t * LATENT);
        norm(x, gain, eps);
#pragma unroll
        for (int i = 0; i < x.PER; ++i)
            if (x.at(i) < LATENT) compact[(i64)t * LATENT + x.at(i)] = f32_to_bf16(x.v[i]);
    } else if (blockIdx.y == KEYS_TASK) {
        Lanes<WIDTH> gain, x;
        gain.load(kv_gain);
        wait_for_previous();
        const int place = places.ring_rows[t], position = places.positions[t];
        x.load(kv + (i64)t * WIDTH);
        const Angle angle = angle_of(table, position, first_pair());  // on its way meanwhile
        norm(x, gain, eps);
#pragma unroll
        for (int i = 0; i < x.PER; ++i)
            if (x.at(i) < WIDTH) row[x.at(i)] = x.v[i];
        __syncthreads();
        if (place >= 0 && place < ring)
            write_keys(row, table, position, angle, kvc + (i64)place * WIDTH);
    } else if (blockIdx.y == BLOCKS_TASK) {
        if constexpr (KIND >= BLOCKS) {
            Lanes<WIDTH> gain;
            gain.load(main.gain);
            wait_for_previous();
            const int position = places.positions[t], place = places.index_rows[t];
            if (!ends_block(position, main.C) || place < 0 || place >= N - ring) return;
            const int turned_by = places.firsts[t];
            const Angle angle = angle_of(table, turned_by, first_pair());
            pool_row<WIDTH, MAIN_PARTS, KIND == INDEXED>(main, position, gain, eps, row);
            write_keys(row, table, turned_by, angle, kvc + (i64)(ring + place) * WIDTH);
        }
    } else if constexpr (KIND == INDEXED) {
        Lanes<INDEX_WIDTH> gain;
        gain.load(index.gain);
        wait_for_previous();
        const int position = places.positions[t], place = places.index_rows[t];
        if (!ends_block(position, index.C) || place < 0 || place >= B) return;
        pool_row<INDEX_WIDTH, INDEX_PARTS, 1>(index, position, gain, eps, row);
        write_index(row, table, places.firsts[t], scale, keys + (i64)place * INDEX_WIDTH);
    }
}

#if KIND == 0

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    finish_window(const float* latent, const float* q_gain, const float* kv, const float* kv_gain,
                  const float* table, const i32* positions, const i32* ring_rows, bf16* compact,
                  float* kvc, int N, int R, int P, int ring, float eps) {
    finish(latent, q_gain, kv, kv_gain, {table, R, P}, {positions, ring_rows, nullptr, nullptr},
           compact, kvc, N, ring, {}, {}, nullptr, 0, 0.0f, eps);
}

#elif KIND == 1

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    finish_blocks(const float* latent, const float* q_gain, const float* kv, const float* kv_gain,
                  const float* table, const i32* positions, const i32* ring_rows,
                  const float* raw_kv, const float* raw_score, const float* ape, const float* gain,
                  const i32* firsts, const i32* index_rows, bf16* compact, float* kvc, int N, int R,
                  int P, int C, int S, int ring, float eps) {
    finish(latent, q_gain, kv, kv_gain, {table, R, P}, {positions, ring_rows, firsts, index_rows},
           compact, kvc, N, ring, {raw_kv, raw_score, ape, gain, C, S}, {}, nullptr, 0, 0.0f, eps);
}

#elif KIND == 2

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    finish_indexed(const float* latent, const float* q_gain, const float* kv, const float* kv_gain,
                   const float* table, const i32* positions, const i32* ring_rows,
                   const float* raw_kv, const float* raw_score, const float* ape, const float* gain,
                   const i32* firsts, const i32* index_rows, const float* index_kv,
                   const float* index_score, const float* index_ape, const float* index_gain,
                   bf16* compact, float* kvc, bf16* keys, int N, int R, int P, int C, int S, int B,
                   int ring, float scale, float eps) {
    finish(latent, q_gain, kv, kv_gain, {table, R, P}, {positions, ring_rows, firsts, index_rows},
           compact, kvc, N, ring, {raw_kv, raw_score, ape, gain, C, S},
           {index_kv, index_score, index_ape, index_gain, C, S}, keys, B, scale, eps);
}

#endif

// project: every product of a layer's normed input, for 1 to 8 rows of it, in one launch; beside them
// the coefficients of a hyper-connection that hyper_step left open
//
//   latent[t, q] = sum over d of wq_a[q, d] * bf16(x[t, d])     codes e4m3 [Q, D], scales of 128 x 128
//   kv[t, k]     = sum over d of wkv[k, d] * bf16(x[t, d])      codes e4m3 [K, D], scales of 128 x 128
//   heads[t, h]  = sum over d of proj[h, d] * bf16(x[t, d])     bf16 [H, D]
//   raw_kv[row], raw_score[row] = x[t] times every row of the compressor's wkv and wgate, bf16 [c K, D],
//                               unrounded, in row raw_rows[t] of their rings; the indexer's likewise
//   post f32 [T, M], comb f32 [T, M, M]: the bytes of hyper_split, of mix f32 [T, C], scaled,
//                               hyper_scale f32 [3] and hyper_base f32 [C]
//
//   project_window    latent and kv: a layer without blocks
//   project_blocks    and the compressor, c = 1
//   project_indexed   and the compressor, c = 2, the indexer's of [L, D], and heads
//
// The bytes are those of cast_bf16, linear_fp8, linear_bf16, island_dots_bf16_f32 and movement_scatter:
// dense sums in the order of common/gemv.cuh with its PARTS, islands in that of common/parts.cuh with
// the PART_STEPS of island_dots. A row of weights is summed alone, so it does not show which block has
// it, and beside what.
//
// The block after those with products balances, a warp a token: a long chain of divisions that nothing
// else in this launch waits for. It has a multiprocessor to itself, which takes nothing from the others:
// a model's matrices over one block fewer are as many rows a block at most.
//
// A block has an even share of the rows of every matrix, so all end together: one block on an SM. What
// a warp reads is a sequence of beats through all of them, known when this is compiled: RING beats of
// loads are on their way in registers, and when one is summed, the loads of the RING-th after it begin.
// A lane uses its own loads only, so the block has no barriers on the way. The first beat's loads leave
// first, then x, then the other beats', for nothing is summed before x has come.
//
// Beats of a warp stand one behind the other in the code if they are few, as in a step of a model, and
// if x leaves registers for that; else they are walked in rounds of one task of each matrix.
//
// Elements past the end are zeros, which change no sum. An id outside the ring writes nothing.
//
// Build constants: STREAMS, ITERATIONS; KIND (0, 1 or 2: which of the three is built), ROWS (1..8),
// WIDTH (D), BLOCKS (those with products), rows of what each kind reads, both matrices of a pair
// (DENSE_HEIGHT, HEAD_HEIGHT, MAIN_HEIGHT, INDEX_HEIGHT), DENSE_PARTS, MAIN_STEPS, MAIN_PARTS,
// INDEX_STEPS, INDEX_PARTS, WARP_ROWS (of an island, in a beat), RING, STAGED.
#define BATCH 1
#include "common/balancing.cuh"
#include "common/overlap.cuh"
#include "common/project_weights.cuh"

enum { WINDOW, BLOCKED, INDEXED };

// ------------------------------------------------------------------ the walk

__device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
constexpr int BEATS = Main::OF_WARP * Main::BEATS + Index::OF_WARP * Index::BEATS +
                      Dense::OF_WARP * Dense::BEATS + Heads::OF_WARP * Heads::BEATS;
// x that comes from global memory has its loads in registers too.
constexpr bool AT_ONCE = STAGED && BEATS <= 32;
constexpr int ROUNDS = AT_ONCE ? 1
                               : max_of(max_of(Main::OF_WARP, Index::OF_WARP),
                                        max_of(Dense::OF_WARP, Heads::OF_WARP));

// Places of a segment's beats in a round.
template <class Segment, int First>
struct Span {
    static constexpr int TASKS = AT_ONCE ? Segment::OF_WARP : Segment::OF_WARP > 0;
    static constexpr int END = First + TASKS * Segment::BEATS;
    template <int At>
    static __device__ __forceinline__ int task(int round) {
        return round * TASKS + (At - First) / Segment::BEATS;
    }
    template <int At>
    static constexpr int BEAT = (At - First) % Segment::BEATS;
};
using MainSpan = Span<Main, 0>;
using IndexSpan = Span<Index, MainSpan::END>;
using DenseSpan = Span<Dense, IndexSpan::END>;
using HeadSpan = Span<Heads, DenseSpan::END>;
// A beat's place tells its slot in the ring, in every round.
constexpr int ROUND = ROUNDS == 1 ? HeadSpan::END : (HeadSpan::END + RING - 1) / RING * RING;

// The assembler would put off loads until sums that do not need them are done, so a barrier of the warp
// parts the beats. With more sums in registers it has no room for such order.
constexpr bool IN_ORDER = ROWS <= 4;

struct Walk {
    Main main;
    Index index;
    Dense dense;
    Heads heads;
    Beat ring[RING];

    template <int At, class Span, class Segment>
    __device__ __forceinline__ void fetch_of(Segment& segment, int round) {
        const int i = Span::template task<At>(round);
        if (segment.has(i)) segment.fetch(ring[At % RING], i, Span::template BEAT<At>);
    }
    template <int At>
    __device__ __forceinline__ void fetch(int round) {
        if constexpr (At < MainSpan::END) {
            fetch_of<At, MainSpan>(main, round);
        } else if constexpr (At < IndexSpan::END) {
            fetch_of<At, IndexSpan>(index, round);
        } else if constexpr (At < DenseSpan::END) {
            fetch_of<At, DenseSpan>(dense, round);
        } else if constexpr (At < HeadSpan::END) {
            fetch_of<At, HeadSpan>(heads, round);
        } else if constexpr (At >= ROUND && ROUNDS > 1) {
            if (round + 1 < ROUNDS) fetch<At - ROUND>(round + 1);
        }
    }
    template <int From, int To>
    __device__ __forceinline__ void fetch_all() {
        if constexpr (From < To) {
            fetch<From>(0);
            fetch_all<From + 1, To>();
        }
    }

    template <int At, class Span, class Segment>
    __device__ __forceinline__ void add_of(Segment& segment, int round, const Inputs& x,
                                           const bf16* rounded) {
        const int i = Span::template task<At>(round);
        if (segment.has(i)) segment.add(ring[At % RING], i, Span::template BEAT<At>, x, rounded);
    }
    template <int At>
    __device__ __forceinline__ void add_from(int round, const Inputs& x, const bf16* rounded) {
        if constexpr (At < ROUND) {
            if constexpr (At < MainSpan::END)
                add_of<At, MainSpan>(main, round, x, rounded);
            else if constexpr (At < IndexSpan::END)
                add_of<At, IndexSpan>(index, round, x, rounded);
            else if constexpr (At < DenseSpan::END)
                add_of<At, DenseSpan>(dense, round, x, rounded);
            else if constexpr (At < HeadSpan::END)
                add_of<At, HeadSpan>(heads, round, x, rounded);
            fetch<At + RING>(round);
            if (IN_ORDER) __syncwarp();
            add_from<At + 1>(round, x, rounded);
        }
    }
};

// ------------------------------------------------------------------ what leaves the block

// The sum of parts in ascending order, for sums that lie `count` apart.
__device__ __forceinline__ float in_order(const float* parts, int count) {
    float value = parts[0];
#pragma unroll
    for (int p = 1; p < DENSE_PARTS; ++p) value += parts[p * count];
    return value;
}

// Rows of a ring, which are as long as the matrix is high.
template <class Rows, int Height, int Parts>
__device__ __forceinline__ void write_rings(const float* partial, const i32* places, int ring,
                                            float* kv, float* score, int thread, int threads) {
    constexpr int WIDE = Height / 2;
    const Share share = Rows::share();
#pragma unroll 1
    for (int i = thread; i < share.count * ROWS; i += threads) {
        const int row = share.first + i / ROWS, id = places[i % ROWS];
        const float value = to_f32(folded_parts<Parts>(partial + i * Parts));
        if (id < 0 || id >= ring) continue;
        if (row < WIDE)
            kv[(i64)id * WIDE + row] = value;
        else
            score[(i64)id * WIDE + row - WIDE] = value;
    }
}

// A compressor's weights and its rings.
struct Compressor {
    const bf16 *wkv, *wgate;
    float *kv, *score;
};

__device__ __forceinline__ void project(const float* x, const u8* q_codes, const float* q_scales,
                                        const u8* kv_codes, const float* kv_scales, float* latent,
                                        float* kv, int Q, int K, const Open& open, Compressor main,
                                        Compressor index, const i32* raw_rows, int S,
                                        const bf16* proj, float* heads, int H) {
    extern __shared__ __align__(16) float shared[];
    let_next_start();
    if (blockIdx.x == BLOCKS) {
        open.prefetch();
        wait_for_previous();
        return open.close(ROWS, WARPS);
    }
    Walk walk = {{main.wkv, main.wgate, shared + MAIN_AT},
                 {index.wkv, index.wgate, shared + INDEX_AT},
                 {q_codes, kv_codes, q_scales, kv_scales, Q, shared + DENSE_AT},
                 {proj, shared + HEADS_AT},
                 {}};
    walk.fetch_all<0, 1>();
    wait_for_previous();
    fetch_inputs(x, shared);
    i32* const places = (i32*)shared + PLACES_AT;
    if (KIND != WINDOW && threadIdx.x < ROWS)
        cp_async<4>(places + threadIdx.x, raw_rows + threadIdx.x);
    cp_async_commit();
    __syncwarp();
    walk.fetch_all<1, RING>();
    __syncwarp();
    cp_async_wait<0>();
    const Inputs exact = round_inputs(x, shared);
    __syncthreads();
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round)
        walk.add_from<0>(round, exact, (const bf16*)shared);
    __syncthreads();

    // A quarter of the block writes each kind of row.
    constexpr int WRITERS = THREADS / 4;
    const int writer = thread() % WRITERS, of = thread() / WRITERS;
    const Share dense = DenseDeal::share(), some = HeadDeal::share();
    if (of == 0) {
#pragma unroll 1
        for (int i = writer; i < dense.count * ROWS; i += WRITERS) {
            const int row = dense.first + i / ROWS, m = i % ROWS;
            const float value = in_order(shared + DENSE_AT + i, DenseDeal::MOST * ROWS);
            if (row < Q)
                latent[(i64)m * Q + row] = value;
            else
                kv[(i64)m * K + row - Q] = value;
        }
    } else if (KIND != WINDOW && of == 1) {
        write_rings<MainDeal, MAIN_HEIGHT, MAIN_PARTS>(shared + MAIN_AT, places, S, main.kv,
                                                       main.score, writer, WRITERS);
    } else if (KIND == INDEXED && of == 2) {
        write_rings<IndexDeal, INDEX_HEIGHT, INDEX_PARTS>(shared + INDEX_AT, places, S, index.kv,
                                                          index.score, writer, WRITERS);
    } else if (KIND == INDEXED && of == 3) {
#pragma unroll 1
        for (int i = writer; i < some.count * ROWS; i += WRITERS) {
            const int row = some.first + i / ROWS, m = i % ROWS;
            heads[(i64)m * H + row] = in_order(shared + HEADS_AT + i, HeadDeal::MOST * ROWS);
        }
    }
}

#if KIND == 0

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    project_window(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                   const float* kv_scales, const float* mix, const float* hyper_scale,
                   const float* hyper_base, float* latent, float* kv, float* post, float* comb,
                   int Q, int K, float eps) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K,
            {mix, hyper_scale, hyper_base, post, comb, eps}, {}, {}, nullptr, 0, nullptr, nullptr,
            0);
}

#elif KIND == 1

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    project_blocks(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                   const float* kv_scales, const float* mix, const float* hyper_scale,
                   const float* hyper_base, const bf16* wkv, const bf16* wgate, const i32* raw_rows,
                   float* latent, float* kv, float* post, float* comb, float* raw_kv,
                   float* raw_score, int Q, int K, int S, float eps) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K,
            {mix, hyper_scale, hyper_base, post, comb, eps}, {wkv, wgate, raw_kv, raw_score}, {},
            raw_rows, S, nullptr, nullptr, 0);
}

#elif KIND == 2

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    project_indexed(const float* x, const u8* q_codes, const float* q_scales, const u8* kv_codes,
                    const float* kv_scales, const float* mix, const float* hyper_scale,
                    const float* hyper_base, const bf16* wkv, const bf16* wgate,
                    const bf16* index_wkv, const bf16* index_wgate, const bf16* proj,
                    const i32* raw_rows, float* latent, float* kv, float* post, float* comb,
                    float* heads, float* raw_kv, float* raw_score, float* index_kv,
                    float* index_score, int Q, int K, int L, int H, int S, float eps) {
    project(x, q_codes, q_scales, kv_codes, kv_scales, latent, kv, Q, K,
            {mix, hyper_scale, hyper_base, post, comb, eps}, {wkv, wgate, raw_kv, raw_score},
            {index_wkv, index_wgate, index_kv, index_score}, raw_rows, S, proj, heads, H);
}

#endif

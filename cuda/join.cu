// join_add: y[t,:] = the parts of all ranks, added in the order of the ranks, on every rank
// join_argmax: y[t] = the token with the largest logit of all ranks, on every rank
//
//   x f32 [S, T, D]    the parts of the ranks first..first+S-1, which run in this launch: one on a
//                      device of its own; more of them side by side where devices are only imagined
//   logit f32 [S, T]   the largest logit that a rank has for each row, and
//   ids i32 [S, T]     its place among the `share` tokens of that rank
//   box i64 [W]        mailboxes: that of rank r begins offsets[r] letters behind `box`, wherever
//                      that is: on a device box is its own, and the others are the peers' memory
//   state i32 [S, tiles]   how many joins there were, of each tile
//   error i32 [S]      1 + the highest rank that did not come in time; kept from launch to launch
//   y f32 [S, T, D], or i32 [S, T]
//
// A mailbox holds letters[2][N][size of a part] (by the turn's parity and by source), each a value
// and a stamp, which is the turn's number + 1 (common/peers.cuh). A part is T * D float bits, or the
// logit and the token of each of T rows, which are one tile. A block takes a tile of one rank: each
// thread writes its letters into the mailbox of every peer, looks at its own until the peers'
// letters for the same place have this turn's stamp, and adds or chooses. Stamps count on, so nothing
// is reset, and no thread waits for more than it needs.
//
// A rank may be one turn ahead of another: then it writes the other half of the mailbox. It is never
// two ahead. It sends letters of turn t + 2 behind wait_for_previous, so its turn t + 1 has ended,
// which took all letters that the slow rank sent in that turn; and those were sent behind the slow
// rank's wait_for_previous, so its turn t, which reads this half, had ended. So two halves are enough.
//
// The kernel behind may begin once all blocks have, since a block begins with let_next_start. It
// takes no place from a block that a peer waits for: all of this launch have theirs by then.
//
// A thread that misses letters looks again, `spins` times in all and once for each source at least.
// What has not come then makes its element NaN, or its row's token -1, and the error says who was
// missing, and the launch ends as always. Sums are f32, rank 0's part first, so all ranks have the
// same bytes. Tokens are taken by the rule of the argmax kernel: ties go to the lowest, +0 equals
// -0, NaN loses to every number, and a row of NaN gives rank 0's.
//
// Build constant: WIDTH, elements of a thread of join_add: 2 when a part's size is even, else 1.
#include "common/floats.cuh"
#include "common/math.cuh"
#include "common/overlap.cuh"
#include "common/peers.cuh"

constexpr int THREADS = 256;
constexpr int AT_ONCE = 4;  // sources whose letters are asked for before the first is waited for

// A turn, as one block of a rank sees it. letters: the mailboxes; size: letters of a part.
struct Meeting {
    u64* letters;
    const i64* offsets;
    i64 size;
    i32 N, rank;
    i64 home;  // offsets[rank]: asked for with the count and the part, and a cache line with it
    u32 turn;

    // Where mailboxes have the part of a source.
    __device__ __forceinline__ i64 part(i32 source) const {
        return ((i64)(turn & 1) * N + source) * size;
    }
    __device__ __forceinline__ u64 letter(u32 value) const { return letter_of(value, turn + 1); }
    // Counts wrap around: what is not behind is there.
    __device__ __forceinline__ bool has_come(u64 letter) const {
        return (i32)(stamp_of(letter) - (turn + 1)) >= 0;
    }
    template <int Count>
    __device__ __forceinline__ bool have_come(const Letters<Count>& seen) const {
        return has_come(seen.at[0]) && has_come(seen.at[Count - 1]);
    }
    template <int Count>
    __device__ __forceinline__ void send(i64 at, const Letters<Count>& own) const {
        for (i32 peer = 0; peer < N; ++peer)
            if (peer != rank) send_letters(letters + offsets[peer] + part(rank) + at, own);
    }
    // Gives take(source, letters) what lies at that place of the parts, in the order of the ranks.
    template <int Count, class Take>
    __device__ __forceinline__ void receive(i64 at, const Letters<Count>& own, i32 spins,
                                            i32* error, const Take& take) const {
        const u64* parts = letters + home + part(0) + at;
        i32 left = spins;
        for (i32 begin = 0; begin < N; begin += AT_ONCE) {
            Letters<Count> seen[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const i32 source = begin + i;
                seen[i] = own;
                if (source < N && source != rank)
                    seen[i] = look_at_letters<Count>(parts + source * size);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const i32 source = begin + i;
                if (source >= N) continue;
                while (!have_come(seen[i])) {
                    between_looks();
                    seen[i] = look_at_letters<Count>(parts + source * size);
                    if (--left <= 0) break;
                }
                if (!have_come(seen[i])) atomicMax(error, source + 1);
                take(source, seen[i]);
            }
        }
    }
    // By the whole block, each thread of which has read the count by then.
    __device__ __forceinline__ void count(u32* turns) const {
        __syncthreads();
        if (threadIdx.x == 0) *turns = turn + 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    join_add(const float* x, i64* box, const i64* offsets, i32* state, i32* error, float* y, i32 N,
             i32 T, i32 D, i32 first, i32 spins) {
    let_next_start();
    wait_for_previous();
    const i64 size = (i64)T * D, at = ((i64)blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    const bool inside = at < size;
    u32* turns = (u32*)state + blockIdx.x * gridDim.y + blockIdx.y;
    const i32 rank = first + (i32)blockIdx.x;
    const Meeting join = {(u64*)box, offsets, size, N, rank, offsets[rank], *turns};

    Letters<WIDTH> own = {};
    if (inside) {
        const Floats<WIDTH> mine = load_floats<WIDTH>(x + blockIdx.x * size + at);
        for (int i = 0; i < WIDTH; ++i) own.at[i] = join.letter(__float_as_uint(mine.at[i]));
        join.send(at, own);
    }
    join.count(turns);  // while the letters are on their way
    if (!inside) return;
    Floats<WIDTH> sum = {};
    join.receive(at, own, spins, error + blockIdx.x, [&](i32 source, const Letters<WIDTH>& part) {
        for (int i = 0; i < WIDTH; ++i) {
            const float value = join.has_come(part.at[i]) ? __uint_as_float(value_of(part.at[i]))
                                                          : NAN_F32;
            sum.at[i] = source == 0 ? value : sum.at[i] + value;
        }
    });
    store_floats(y + blockIdx.x * size + at, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_argmax(const float* logit, const i32* ids, i64* box, const i64* offsets, i32* state,
                i32* error, i32* y, i32 N, i32 T, i32 first, i32 spins, i32 share) {
    let_next_start();
    wait_for_previous();
    const int row = threadIdx.x;
    const bool inside = row < T;
    u32* turns = (u32*)state + blockIdx.x;
    const i32 rank = first + (i32)blockIdx.x;
    const Meeting join = {(u64*)box, offsets, 2 * T, N, rank, offsets[rank], *turns};

    Letters<2> own = {};
    if (inside) {
        const i32 token = rank * share + ids[blockIdx.x * T + row];
        own.at[0] = join.letter(__float_as_uint(logit[blockIdx.x * T + row]));
        own.at[1] = join.letter((u32)token);
        join.send(2 * row, own);
    }
    join.count(turns);
    if (!inside) return;
    float best = 0.0f;
    i32 token = 0;
    bool all = true;
    join.receive(2 * row, own, spins, error + blockIdx.x, [&](i32 source, const Letters<2>& pair) {
        const float value = __uint_as_float(value_of(pair.at[0]));
        if (source == 0 || (value == value && !(value <= best))) {
            best = value;
            token = (i32)value_of(pair.at[1]);
        }
        all = all && join.have_come(pair);
    });
    y[blockIdx.x * T + row] = all ? token : -1;
}

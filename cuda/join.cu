// join_add: y[t,:] = the parts of all ranks, added in the order of the ranks, on every rank
// join_argmax: y[t] = the token with the largest logit of all ranks, on every rank
//
//   x f32 [S, T, D]    the parts of the ranks first..first+S-1, which run in this launch: one on a
//                      device of its own; more of them side by side where devices are only imagined
//   logit f32 [S, T]   the largest logit that a rank has for each row, and
//   ids i32 [S, T]     its place among the `share` tokens of that rank
//   box i32 [W]        mailboxes: that of rank r begins offsets[r] words behind `box`, wherever
//                      that is: on a device box is its own, and the others are the peers' memory
//   state i32 [S, 2]   how many joins there were, and a ticket that is 0 between launches
//   error i32 [S]      1 + the highest rank that did not come in time; kept from launch to launch
//   y f32 [S, T, D], or i32 [S, T]
//
// A mailbox holds parts[2][N][words of a part] (by the turn's parity and by source), then
// flags[N][tiles] (the number of the last turn whose part of a tile is there). A part is T * D float
// bits, or T logits and then T tokens, which are one tile. A block takes a tile of one rank: it
// writes its part into the mailbox of every peer, raises a flag behind it, waits for the peers'
// flags of the same tile, and adds or chooses. Flags count on, so nothing is reset.
//
// A rank may be one turn ahead of another: then it writes the other half of the mailbox. It is never
// two ahead, since it needs the flags of the turn between, which the slow rank raises in a launch
// that begins when the one that reads this half has ended. So two halves are enough.
//
// A wait ends after `spins` looks: then the tile is NaN, or its tokens are -1, and the error says who
// was missing, and the launch ends as always. Sums are f32, rank 0's part first, so all ranks have
// the same bytes. Tokens are taken by the rule of the argmax kernel: ties go to the lowest, +0 equals
// -0, NaN loses to every number, and a row of NaN gives rank 0's.
//
// Build constant: WIDTH, elements of a thread: 4 when a part is whole vectors, else 1.
#include "common/floats.cuh"
#include "common/math.cuh"
#include "common/peers.cuh"

constexpr int THREADS = 256;

// A tile of a turn, as one rank's block sees it. words: the mailboxes; size: words of a part.
struct Meeting {
    u32* words;
    const i64* offsets;
    i64 size;
    i32 N, rank, tile, tiles;
    u32 turn;

    // Where a mailbox has the part of a source.
    __device__ __forceinline__ u32* part(i32 of, i32 source) const {
        return words + offsets[of] + ((i64)(turn & 1) * N + source) * size;
    }
    __device__ __forceinline__ u32* flag(i32 of, i32 source) const {
        return words + offsets[of] + 2 * N * size + source * tiles + tile;
    }
    // Thread `lane` tells that rank that this one's part is there, and waits for its part; called by
    // the whole block between two barriers. missing: 1 + the highest rank that did not come.
    __device__ __forceinline__ void meet(int lane, i32 spins, i32* missing) const {
        if (lane >= N || lane == rank) return;
        const u32 done = turn + 1;  // what flags say once this turn's part is there
        raise_flag(flag(lane, rank), done);
        u32* awaited = flag(rank, lane);
        i32 left = spins;
        // Counts wrap around: what is not behind is there.
        while ((i32)(seen_flag(awaited) - done) < 0 && --left > 0) between_looks();
        if (left <= 0) atomicMax(missing, lane + 1);
    }
    // The last block of the rank counts the turn: all others have read it by then. By one thread.
    __device__ __forceinline__ void count(u32* state, i32* error, i32 missing) const {
        if (missing) atomicMax(error, missing);
        __threadfence();
        if (atomicAdd(state + 1, 1) == tiles - 1) {
            __threadfence();
            atomicExch(state + 1, 0);
            atomicExch(state, turn + 1);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    join_add(const float* x, i32* box, const i64* offsets, i32* state, i32* error, float* y, i32 N,
             i32 T, i32 D, i32 first, i32 spins) {
    __shared__ u32 turn;
    __shared__ i32 missing;
    const int lane = threadIdx.x;
    const i64 size = (i64)T * D, at = ((i64)blockIdx.y * THREADS + lane) * WIDTH;
    const bool inside = at < size;
    u32* own_state = (u32*)state + 2 * blockIdx.x;
    if (lane == 0) {
        turn = own_state[0];
        missing = 0;
    }
    __syncthreads();
    const Meeting join = {(u32*)box,       offsets,        size, N, first + (i32)blockIdx.x,
                          (i32)blockIdx.y, (i32)gridDim.y, turn};

    Floats<WIDTH> mine = {};
    if (inside) {
        mine = load_floats<WIDTH>(x + blockIdx.x * size + at);
        for (i32 peer = 0; peer < N; ++peer)
            if (peer != join.rank) store_floats((float*)join.part(peer, join.rank) + at, mine);
    }
    __syncthreads();
    join.meet(lane, spins, &missing);
    __syncthreads();
    if (inside) {
        const float* parts = (const float*)join.part(join.rank, 0) + at;
        Floats<WIDTH> sum = join.rank == 0 ? mine : load_floats<WIDTH>(parts);
        for (i32 source = 1; source < N; ++source) {
            const Floats<WIDTH> part = source == join.rank
                                           ? mine
                                           : load_floats<WIDTH>(parts + source * size);
            for (int i = 0; i < WIDTH; ++i) sum.at[i] += part.at[i];
        }
        if (missing)
            for (int i = 0; i < WIDTH; ++i) sum.at[i] = NAN_F32;
        store_floats(y + blockIdx.x * size + at, sum);
    }
    if (lane == 0) join.count(own_state, error + blockIdx.x, missing);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_argmax(const float* logit, const i32* ids, i32* box, const i64* offsets, i32* state,
                i32* error, i32* y, i32 N, i32 T, i32 first, i32 spins, i32 share) {
    __shared__ u32 turn;
    __shared__ i32 missing;
    const int row = threadIdx.x;
    const bool inside = row < T;
    u32* own_state = (u32*)state + 2 * blockIdx.x;
    if (row == 0) {
        turn = own_state[0];
        missing = 0;
    }
    __syncthreads();
    const Meeting join = {(u32*)box, offsets, 2 * T, N, first + (i32)blockIdx.x, 0, 1, turn};

    float best = 0.0f;
    i32 token = 0;
    if (inside) {
        best = logit[blockIdx.x * T + row];
        token = join.rank * share + ids[blockIdx.x * T + row];
        for (i32 peer = 0; peer < N; ++peer)
            if (peer != join.rank) {
                u32* part = join.part(peer, join.rank);
                part[row] = __float_as_uint(best);
                part[T + row] = (u32)token;
            }
    }
    __syncthreads();
    join.meet(row, spins, &missing);
    __syncthreads();
    if (inside) {
        const float own = best;
        const i32 own_token = token;
        for (i32 source = 0; source < N; ++source) {
            const u32* part = join.part(join.rank, source);
            const bool here = source == join.rank;
            const float value = here ? own : __uint_as_float(part[row]);
            const i32 offered = here ? own_token : (i32)part[T + row];
            if (source == 0 || (value == value && !(value <= best))) best = value, token = offered;
        }
        y[blockIdx.x * T + row] = missing ? -1 : token;
    }
    if (row == 0) join.count(own_state, error + blockIdx.x, missing);
}

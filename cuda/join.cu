// join: y[t,:] = the parts of all ranks, added in the order of the ranks, on every rank
//
//   x f32 [S, T, D]    the parts of the ranks first..first+S-1, which run in this launch: one on a
//                      device of its own; more of them side by side where devices are only imagined
//   box i32 [W]        mailboxes: that of rank r begins offsets[r] words behind `box`, wherever
//                      that is: on a device box is its own, and the others are the peers' memory
//   state i32 [S, 2]   how many joins there were, and a ticket that is 0 between launches
//   error i32 [S]      1 + the highest rank that did not come in time; kept from launch to launch
//   y f32 [S, T, D]
//
// A mailbox holds parts[2][N][T * D] (float bits, by the turn's parity and by source), then
// flags[N][tiles] (the number of the last turn whose part of a tile is there). A block takes a tile
// of one rank: it writes its part into the mailbox of every peer, raises a flag behind it, waits
// for the peers' flags of the same tile, and adds. Flags count on, so nothing is reset.
//
// A rank may be one turn ahead of another: then it writes the other half of the mailbox. It is never
// two ahead, since it needs the flags of the turn between, which the slow rank raises in a launch
// that begins when the one that reads this half has ended. So two halves are enough.
//
// A wait ends after `spins` looks: then the tile is NaN and the error says who was missing, and the
// launch ends as always. Sums are f32, rank 0's part first, so all ranks have the same bytes.
//
// Build constant: WIDTH, elements of a thread: 4 when a part is whole vectors, else 1.
#include "common/floats.cuh"
#include "common/math.cuh"
#include "common/peers.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    join_add(const float* x, i32* box, const i64* offsets, i32* state, i32* error, float* y, i32 N,
             i32 T, i32 D, i32 first, i32 spins) {
    __shared__ u32 turn;
    __shared__ i32 missing;
    const i32 rank = first + blockIdx.x, tile = blockIdx.y, tiles = gridDim.y;
    const int lane = threadIdx.x;
    const i64 size = (i64)T * D, at = ((i64)tile * THREADS + lane) * WIDTH;
    const bool inside = at < size;
    u32* words = (u32*)box;
    u32* own_state = (u32*)state + 2 * blockIdx.x;
    if (lane == 0) {
        turn = own_state[0];
        missing = 0;
    }
    __syncthreads();
    const u32 done = turn + 1;  // what flags say once this turn's part is there
    const i64 half = (i64)(turn & 1) * N * size;

    Floats<WIDTH> mine = {};
    if (inside) {
        mine = load_floats<WIDTH>(x + blockIdx.x * size + at);
        for (i32 peer = 0; peer < N; ++peer)
            if (peer != rank)
                store_floats((float*)(words + offsets[peer] + half + rank * size) + at, mine);
    }
    __syncthreads();
    if (lane < N && lane != rank) {
        const i64 flags = 2 * N * size;
        raise_flag(words + offsets[lane] + flags + rank * tiles + tile, done);
        u32* awaited = words + offsets[rank] + flags + lane * tiles + tile;
        i32 left = spins;
        // Counts wrap around: what is not behind is there.
        while ((i32)(seen_flag(awaited) - done) < 0 && --left > 0) between_looks();
        if (left <= 0) atomicMax(&missing, lane + 1);
    }
    __syncthreads();
    if (inside) {
        const float* parts = (const float*)(words + offsets[rank] + half) + at;
        Floats<WIDTH> sum = rank == 0 ? mine : load_floats<WIDTH>(parts);
        for (i32 source = 1; source < N; ++source) {
            const Floats<WIDTH> part = source == rank ? mine
                                                      : load_floats<WIDTH>(parts + source * size);
            for (int i = 0; i < WIDTH; ++i) sum.at[i] += part.at[i];
        }
        if (missing)
            for (int i = 0; i < WIDTH; ++i) sum.at[i] = NAN_F32;
        store_floats(y + blockIdx.x * size + at, sum);
    }
    if (lane != 0) return;
    if (missing) atomicMax(error + blockIdx.x, missing);
    // The last block of the rank counts the turn: all others have read it by then.
    __threadfence();
    if (atomicAdd(own_state + 1, 1) == tiles - 1) {
        __threadfence();
        atomicExch(own_state + 1, 0);
        atomicExch(own_state, done);
    }
}

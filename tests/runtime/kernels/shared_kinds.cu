// Every way to declare shared memory that the kernels use.
#include "common/types.cuh"

extern __shared__ i32 at_file_scope[];

template <int size>
__device__ i32 reverse_in_template(i32 value) {
    __shared__ i32 row[size];
    row[threadIdx.x] = value;
    __syncthreads();
    return row[size - 1 - threadIdx.x];
}

// 64 threads, 1024 bytes of dynamic shared memory; out [64, 6]
extern "C" __global__ void shared_kinds(const i32* x, i32* out) {
    extern __shared__ __align__(16) u8 raw[];
    __shared__ i32 row[64];
    __shared__ float square[8][8];
    static __shared__ uint4 vectors[64];
    i32* dynamic = reinterpret_cast<i32*>(raw) + 128;
    const i32 t = threadIdx.x;
    row[t] = x[t];
    square[t / 8][t % 8] = (float)x[t];
    dynamic[t] = x[t] + 1;
    at_file_scope[t] = x[t] + 2;
    vectors[t] = make_uint4(x[t], 1, 2, 3);
    __syncthreads();
    i32* mine = out + 6 * t;
    mine[0] = row[63 - t];
    mine[1] = (i32)square[t % 8][t / 8];
    mine[2] = dynamic[63 - t];
    mine[3] = reinterpret_cast<i32*>(raw)[63 - t];
    mine[4] = (i32)vectors[63 - t].x;
    mine[5] = reverse_in_template<64>(x[t]);
}

// What shared memory holds before anybody writes it, and whether it survives from block to block.
extern "C" __global__ void leftovers(u32* out) {
    extern __shared__ u32 words[];
    __shared__ u32 fixed;
    out[2 * blockIdx.x] = words[0];
    out[2 * blockIdx.x + 1] = fixed;
    words[0] = 7;
    fixed = 8;
}

// movement: rows picked, placed, added, repeated and averaged
//
//   embed         y[t,:] = table[ids[t],:]       table bf16 [V, D]  ids i32 [T]  y f32 [T, D]
//   gather        y[a,:] = x[ids[a],:]           x bf16 [S, D]      ids i32 [A]  y bf16 [A, D]
//   gather_bytes  the same                       x u8 [S, D]        ids i32 [A]  y u8 [A, D]
//   gather_row    y[:] = x[ids[slot],:]          x f32 [S, D]       ids i32 [A]  y f32 [D]
//   scatter       y[ids[a],:] = x[a,:]           x f32 [A, D]       ids i32 [A]  y f32 [S, D]
//   scatter_bf16  the same, rounded              x f32 [A, D]       ids i32 [A]  y bf16 [S, D]
//   scatter_add   y[ids[a],:] += x[a,:]          x f32 [A, D]       ids i32 [A]  y f32 [S, D]
//   add           y[n] += x[n]                   x f32 [N]                       y f32 [N]
//   take          y[t,c] = x[t,offset+c]         x f32 [T, S]                    y f32 [T, C]
//   place         y[t,offset+c] = x[t,c]         x f32 [T, C]                    y f32 [T, S]
//   repeat        y[t,m,:] = x[t,:]              x f32 [T, D]                    y f32 [T, M, D]
//   mean          y[t,:] = mean over m of x      x f32 [T, M, D]                 y f32 [T, D]
//
// One block a row (in add and mean: 256 elements); no thread reads what another one
// writes. Copies are exact; scatter_bf16 and an addition round once; mean adds its streams ascending from 0, each
// addition rounding, then divides once. Row ids live on the device, so they are checked here: an id
// outside the array gives a row of NaN (bytes 0xFF) when reading and is skipped when writing. Ids
// that are written to must be distinct inside a launch.
#include "common/convert.cuh"
#include "common/copy.cuh"
#include "common/math.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ bool on_16(const void* address) { return ((u64)address & 15) == 0; }

// One row by the whole block, 16 bytes a thread where both sides allow it.
template <typename T>
__device__ __forceinline__ void copy_row(const T* from, T* to, i32 count) {
    constexpr i32 PER_LOAD = 16 / sizeof(T);
    const i32 vectors = on_16(from) && on_16(to) ? count / PER_LOAD : 0;
    for (i32 i = threadIdx.x; i < vectors; i += THREADS)
        store16(to + i * PER_LOAD, load16(from + i * PER_LOAD));
    for (i32 i = vectors * PER_LOAD + threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}

template <typename T>
__device__ __forceinline__ void fill_row(T* to, T value, i32 count) {
    for (i32 i = threadIdx.x; i < count; i += THREADS) to[i] = value;
}

// Row `id` of x, or the filler when there is no such row.
template <typename T>
__device__ __forceinline__ void read_row(const T* x, i32 id, i32 rows, T filler, T* y, i32 D) {
    if (id >= 0 && id < rows)
        copy_row(x + (i64)id * D, y, D);
    else
        fill_row(y, filler, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_embed(const bf16* table, const i32* ids, float* y, i32 V, i32 D) {
    const i32 id = ids[blockIdx.x];
    float* row = y + (i64)blockIdx.x * D;
    if (id < 0 || id >= V) return fill_row(row, NAN_F32, D);
    const bf16* from = table + (i64)id * D;
    for (i32 i = threadIdx.x; i < D; i += THREADS) row[i] = bf16_to_f32(from[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_gather(const bf16* x, const i32* ids, bf16* y, i32 S, i32 D) {
    read_row(x, ids[blockIdx.x], S, (bf16)0x7fc0, y + (i64)blockIdx.x * D, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_gather_bytes(const u8* x, const i32* ids, u8* y, i32 S, i32 D) {
    read_row(x, ids[blockIdx.x], S, (u8)0xff, y + (i64)blockIdx.x * D, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_gather_row(const float* x, const i32* ids, float* y, i32 S, i32 D, i32 slot) {
    read_row(x, ids[slot], S, NAN_F32, y, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_scatter(const float* x, const i32* ids, float* y, i32 S, i32 D) {
    const i32 id = ids[blockIdx.x];
    if (id < 0 || id >= S) return;
    copy_row(x + (i64)blockIdx.x * D, y + (i64)id * D, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_scatter_bf16(const float* x, const i32* ids, bf16* y, i32 S, i32 D) {
    const i32 id = ids[blockIdx.x];
    if (id < 0 || id >= S) return;
    const float* from = x + (i64)blockIdx.x * D;
    bf16* to = y + (i64)id * D;
    for (i32 i = threadIdx.x; i < D; i += THREADS) to[i] = f32_to_bf16(from[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_scatter_add(const float* x, const i32* ids, float* y, i32 S, i32 D) {
    const i32 id = ids[blockIdx.x];
    if (id < 0 || id >= S) return;
    const float* from = x + (i64)blockIdx.x * D;
    float* to = y + (i64)id * D;
    for (i32 i = threadIdx.x; i < D; i += THREADS) to[i] += from[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_add(const float* x, float* y, i64 N) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < N) y[i] += x[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_take(const float* x, float* y, i32 S, i32 C, i32 offset) {
    copy_row(x + (i64)blockIdx.x * S + offset, y + (i64)blockIdx.x * C, C);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_place(const float* x, float* y, i32 S, i32 C, i32 offset) {
    copy_row(x + (i64)blockIdx.x * C, y + (i64)blockIdx.x * S + offset, C);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_repeat(const float* x, float* y, i32 M, i32 D) {
    copy_row(x + (i64)blockIdx.x * D, y + ((i64)blockIdx.x * M + blockIdx.y) * D, D);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    movement_mean(const float* x, float* y, i32 M, i32 D) {
    const i32 column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= D) return;
    const float* stream = x + (i64)blockIdx.x * M * D + column;
    float sum = 0.0f;
    for (i32 m = 0; m < M; ++m) sum += stream[(i64)m * D];
    y[(i64)blockIdx.x * D + column] = sum / (float)M;
}

// combine: y[t,:] = the sum of a token's contributions, in the order it asks for
//
//   combine          contributions f32 [T, A, D]    order i32 [T, A]    y f32 [T, D]
//   combine_shared   the same, then plus shared f32 [T, D]
//
// order lists the slots of a token by ascending expert id, so that the sum does not depend on the
// order in which the experts were selected. Additions are f32, one after the other from +0: the
// bytes of scatter_add calls into a zeroed y, one expert after the other; the shared expert last.
//
// One block of threads a token and 256 * WIDTH columns; no thread reads what another one writes.
// order lives on the device, so it is checked here: an entry that is no slot makes its token NaN. A
// slot that is listed twice counts twice.
//
// Build constant: WIDTH, columns of a thread: 4 when every row starts on 16 bytes, else 1.
#include "common/floats.cuh"
#include "common/math.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ void add(Floats<WIDTH>& sum, const Floats<WIDTH>& value) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum.at[i] += value.at[i];
}

// The ordered sum of the columns from `column` on.
__device__ __forceinline__ Floats<WIDTH> routed(const float* contributions, const i32* order, i32 A,
                                                i32 D, i32 column) {
    const i32* slots = order + (i64)blockIdx.x * A;
    const float* from = contributions + (i64)blockIdx.x * A * D + column;
    Floats<WIDTH> sum = {};
    bool known = true;
#pragma unroll 8
    for (i32 a = 0; a < A; ++a) {
        const i32 slot = slots[a];
        const bool inside = slot >= 0 && slot < A;
        known &= inside;
        add(sum, load_floats<WIDTH>(from + (i64)(inside ? slot : 0) * D));
    }
    if (!known)
        for (int i = 0; i < WIDTH; ++i) sum.at[i] = NAN_F32;
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    combine(const float* contributions, const i32* order, float* y, i32 A, i32 D) {
    const i32 column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (column >= D) return;
    store_floats(y + (i64)blockIdx.x * D + column, routed(contributions, order, A, D, column));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    combine_shared(const float* contributions, const i32* order, const float* shared, float* y,
                   i32 A, i32 D) {
    const i32 column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (column >= D) return;
    const i64 at = (i64)blockIdx.x * D + column;
    Floats<WIDTH> sum = routed(contributions, order, A, D, column);
    add(sum, load_floats<WIDTH>(shared + at));
    store_floats(y + at, sum);
}

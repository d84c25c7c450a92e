// rope: the last R lanes of every head rotated in place, in pairs, by the angle of their position
//
//   x f32 [T, H, K], rows x_stride apart    table f32 [P, R]: (cos, sin) pairs    positions i32 [T]
//   (a, b) = lanes (2i, 2i + 1) of the last R:  a' = a c - b s,  b' = a s + b c
//
// INVERSE negates s. One thread a pair. Both products are rounded before they are added: the build
// forbids contraction, so every compiler gives the same bytes. The other lanes are not touched. A
// position outside the table makes its rotated lanes NaN and reads nothing.
#include "common/math.cuh"

extern "C" __global__ void __launch_bounds__(256)
    rope(float* __restrict__ x, const float* __restrict__ table, const int* __restrict__ positions,
         int T, int H, int K, int R, int P, i64 x_stride) {
    const u32 pairs = (u32)R / 2;
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= (u32)T * (u32)H * pairs) return;
    const u32 pair = i % pairs, head = i / pairs % (u32)H, row = i / pairs / (u32)H;
    float* const lane = x + row * x_stride + (i64)head * K + (K - R) + 2 * pair;
    const int position = positions[row];
    if (position < 0 || position >= P) {
        lane[0] = lane[1] = NAN_F32;
        return;
    }
    const float* const angle = table + (i64)position * R + 2 * pair;
    const float c = angle[0], s = INVERSE ? -angle[1] : angle[1];
    const float a = lane[0], b = lane[1];
    lane[0] = a * c - b * s;
    lane[1] = a * s + b * c;
}

// rope_neox: the first R lanes of every head rotated in place, in pairs (j, j + R/2)
//
//   x f32 [T, H, K], rows x_stride apart    table f32 [P, R]: R/2 cosines, then R/2 sines
//   positions i32 [T]
//   (a, b) = lanes (j, j + R/2):  a' = a c - b s,  b' = b c + a s
//
// One thread a pair. Both products are rounded before they are added: the build forbids contraction,
// so every compiler gives the same bytes. A gain that the rotation brings along (YaRN's) is inside
// the table. The other lanes are not touched. A position outside the table makes its rotated lanes
// NaN and reads nothing.
#include "common/math.cuh"

extern "C" __global__ void __launch_bounds__(256)
    rope_neox(float* __restrict__ x, const float* __restrict__ table,
              const int* __restrict__ positions, int T, int H, int K, int R, int P, i64 x_stride) {
    const u32 half = (u32)R / 2;
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= (u32)T * (u32)H * half) return;
    const u32 pair = i % half, head = i / half % (u32)H, row = i / half / (u32)H;
    float* const lane = x + row * x_stride + (i64)head * K + pair;
    const int position = positions[row];
    if (position < 0 || position >= P) {
        lane[0] = lane[half] = NAN_F32;
        return;
    }
    const float* const angle = table + (i64)position * R + pair;
    const float c = angle[0], s = angle[half];
    const float a = lane[0], b = lane[half];
    lane[0] = a * c - b * s;
    lane[half] = b * c + a * s;
}

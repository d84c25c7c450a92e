// Tensor-core product m16n8k16, bf16 or f16 in and f32 out, and the loads that lay out its operands.
//
// Every function is a warp collective: all 32 lanes call it together.
//
// Fragments, with group = lane / 4 and pair = lane % 4, each u32 holding two neighbouring elements:
//   a[0] row group,     columns 2 pair, +1        a[2] the same row, columns 2 pair + 8, +9
//   a[1] row group + 8, columns 2 pair, +1        a[3] row group + 8, columns 2 pair + 8, +9
//   b[0] rows 2 pair, +1 of column group          b[1] rows 2 pair + 8, +9 of column group
//   d[0], d[1] row group, columns 2 pair, +1      d[2], d[3] row group + 8, the same columns
//
// The host sums in double and rounds once per call; the hardware rounds inside. Compare with a
// tolerance, never by bits.
#pragma once

#include "common/types.cuh"

#ifndef DSV4_HOST

// d += a b
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const u32 (&a)[4],
                                               const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of f16.
__device__ __forceinline__ void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

// Two 8x8 matrices of 16-bit elements; lane i (i < 16) points at row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x2(u32 (&out)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x2_trans(u32 (&out)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// Four 8x8 matrices; lane i points at row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#else

__device__ inline void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                      HOST_SITE_PARAMETERS) {
    host::mma_16816<host::Bf16Value>(d, a, b, file, line);
}
__device__ inline void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                     HOST_SITE_PARAMETERS) {
    host::mma_16816<host::F16Value>(d, a, b, file, line);
}
__device__ inline void ldmatrix_x2(u32 (&out)[2], const void* row, HOST_SITE_PARAMETERS) {
    host::load_matrices<2, false>(out, row, file, line);
}
__device__ inline void ldmatrix_x2_trans(u32 (&out)[2], const void* row, HOST_SITE_PARAMETERS) {
    host::load_matrices<2, true>(out, row, file, line);
}
__device__ inline void ldmatrix_x4(u32 (&out)[4], const void* row, HOST_SITE_PARAMETERS) {
    host::load_matrices<4, false>(out, row, file, line);
}
__device__ inline void ldmatrix_x4_trans(u32 (&out)[4], const void* row, HOST_SITE_PARAMETERS) {
    host::load_matrices<4, true>(out, row, file, line);
}

#endif

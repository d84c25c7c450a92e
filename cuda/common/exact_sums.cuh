// When a sum of products of two rows is exact in f32, whatever its order, told from the rows' bits.
//
// All elements of both have at most two leading bits; a row's largest element is below 2^(e + 1) and
// every element a multiple of 2^(d - 1), with e and d its largest and smallest exponents. So a sum of
// up to 128 products is a multiple of one unit and below 2^(7 + r + r') units, r = e - d + 2 of each
// row: exact while that is at most 2^22, two bits less than a float has, and while units and sums are
// normal numbers. Tensor cores, which keep 24 bits below the largest term, then lose nothing either.
#pragma once

#include "common/reduce.cuh"

constexpr u32 BEYOND_TWO_BITS = 0x3fffffu;

// What is known of a row of numbers: bits that occur, and the ends of its magnitudes. A magnitude here
// is its bits without the sign, twice; `small` is the smallest but zero, minus one.
struct Span {
    u32 seen, large, small;
};
__device__ __forceinline__ void widen(Span& span, u32 bits) {
    span.seen |= bits;
    span.large = max(span.large, bits << 1);
    span.small = min(span.small, (bits << 1) - 1u);
}
__device__ __forceinline__ void widen_by_lane(Span& span, int offset) {
    span.seen |= __shfl_xor_sync(FULL_WARP, span.seen, offset);
    span.large = max(span.large, __shfl_xor_sync(FULL_WARP, span.large, offset));
    span.small = min(span.small, __shfl_xor_sync(FULL_WARP, span.small, offset));
}
__device__ __forceinline__ int top_exponent(const Span& span) { return (int)(span.large >> 24); }
__device__ __forceinline__ int low_exponent(const Span& span) {
    return (int)((span.small + 1u) >> 24);
}
__device__ __forceinline__ bool has_two_bits(const Span& span) {
    return (span.seen & BEYOND_TWO_BITS) == 0;
}

// What is known of several rows: their ends, the most bits of one, and whether all elements are finite
// and of two bits.
struct Reach {
    int top, low, bits;
    bool fits;
};
__device__ __forceinline__ Reach reach_of_nothing() { return {0, 255, 0, true}; }
__device__ __forceinline__ void take_in(Reach& all, const Reach& one) {
    all.top = max(all.top, one.top);
    all.low = min(all.low, one.low);
    all.bits = max(all.bits, one.bits);
    all.fits = all.fits && one.fits;
}
__device__ __forceinline__ void take_in(Reach& all, const Span& row) {
    if (row.large == 0) return;
    const int top = top_exponent(row), low = low_exponent(row);
    take_in(all, {top, low, top - low + 2, has_two_bits(row) && low > 0 && top < 255});
}

// Whether every partial sum of products of that row with any of those is exact.
__device__ __forceinline__ bool sums_are_exact(const Reach& rows, const Span& row) {
    const int top = top_exponent(row), low = low_exponent(row);
    if (!rows.fits || top == 255) return false;         // NaN or infinity somewhere
    if (row.large == 0 || rows.bits == 0) return true;  // nothing but zeros
    return has_two_bits(row) && low > 0 && 7 + rows.bits + (top - low + 2) <= 22 &&
           rows.top + top <= 360 && rows.low + low >= 140;
}

// Two floats of at most eight bits as a pair of bf16, the first in the low half.
__device__ __forceinline__ u32 bf16_pair(u32 first, u32 second) {
    return first >> 16 | (second & 0xffff0000u);
}

// Neighbouring floats of one thread: 1 at a time, or 2 or 4 in one access of 8 or 16 bytes.
//
// Rows can be walked by fours when every row starts on 16 bytes: for a base that does and a width
// that is a multiple of 4; by twos likewise.
#pragma once

#include "common/copy.cuh"

template <int Count>
struct Floats {
    static_assert(Count == 1 || Count == 2 || Count == 4, "a thread loads 4, 8 or 16 bytes");
    float at[Count];
};

template <int Count>
__device__ __forceinline__ Floats<Count> load_floats(const float* from) {
    Floats<Count> value;
    if constexpr (Count == 4) {
        const uint4 raw = load16(from);
        value.at[0] = __uint_as_float(raw.x);
        value.at[1] = __uint_as_float(raw.y);
        value.at[2] = __uint_as_float(raw.z);
        value.at[3] = __uint_as_float(raw.w);
    } else if constexpr (Count == 2) {
        const float2 raw = *reinterpret_cast<const float2*>(from);
        value.at[0] = raw.x;
        value.at[1] = raw.y;
    } else {
        value.at[0] = *from;
    }
    return value;
}

template <int Count>
__device__ __forceinline__ void store_floats(float* to, const Floats<Count>& value) {
    if constexpr (Count == 4)
        store16(to, make_uint4(__float_as_uint(value.at[0]), __float_as_uint(value.at[1]),
                               __float_as_uint(value.at[2]), __float_as_uint(value.at[3])));
    else if constexpr (Count == 2)
        *reinterpret_cast<float2*>(to) = make_float2(value.at[0], value.at[1]);
    else
        *to = value.at[0];
}

// Rotation of the last R columns of a head, in pairs, by a table of (cos, sin) of every position.
#pragma once

#include "common/math.cuh"
#include "common/types.cuh"

// By what two neighbouring lanes turn; a position outside the table turns them to NaN.
struct Turn {
    float c, s;
    bool there;

    __device__ __forceinline__ void apply(float& a, float& b, bool inverse) const {
        if (!there) {
            a = b = NAN_F32;
            return;
        }
        const float sine = inverse ? -s : s;
        const float first = a * c - b * sine;
        b = a * sine + b * c;
        a = first;
    }
};

struct Angles {
    const float* table;
    i32 position, R, P;

    // Of lanes DIM - R + 2 pair and the next.
    __device__ __forceinline__ Turn at(i32 pair) const {
        const bool there = position >= 0 && position < P;
        const float* const angle = table + (i64)position * R + 2 * pair;
        return {there ? angle[0] : 0.0f, there ? angle[1] : 0.0f, there};
    }
};

// CUDA's built-in vector types for the host backend: same names, sizes, alignments and makers.
#pragma once

#define HOST_VECTOR(name, type, align2, align4)                                 \
    struct __attribute__((aligned(align2))) name##2 { type x, y; };             \
    struct name##3 { type x, y, z; };                                           \
    struct __attribute__((aligned(align4))) name##4 { type x, y, z, w; };       \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }            \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

HOST_VECTOR(char, signed char, 2, 4)
HOST_VECTOR(uchar, unsigned char, 2, 4)
HOST_VECTOR(short, short, 4, 8)
HOST_VECTOR(ushort, unsigned short, 4, 8)
HOST_VECTOR(int, int, 8, 16)
HOST_VECTOR(uint, unsigned int, 8, 16)
HOST_VECTOR(float, float, 8, 16)
HOST_VECTOR(longlong, long long, 16, 16)
HOST_VECTOR(ulonglong, unsigned long long, 16, 16)
HOST_VECTOR(double, double, 16, 16)
#undef HOST_VECTOR

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};

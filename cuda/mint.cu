// mint: contents of made checkpoints; an element is a function of a key and its own index alone
//
//   e2m1x2      y[e,i] = byte i of the stream                               y u8 [E, N]
//   e4m3        y[e,i] = e4m3(b0 + b1 + b2 + b3 - 510), b bytes             y e4m3 [E, N]
//   ue8m0       y[e,i] = base + step(h), h 16 bits                          y ue8m0 [E, N]
//   e4m3_scales y[e,i] = 2^(scale i/2 of ue8m0 - second) as e4m3            y e4m3 [E, N]
//   bf16, f32   y[e,i] = mean + scale * (h0 + h1 + h2 + h3 - 131070)        y bf16 or f32 [E, N]
//   expert_ids  y[v,:] = A distinct ids below `experts`                     y i64 [V, A]
//
// A row is one tensor, with a key of its own in keys i64 [E]; a launch makes the same matrix of all
// experts. The stream of a key is Philox 4x32-10 counted from 0: block c gives four words, taken
// from the low bytes up. One thread makes one block's worth of elements, so any part of a tensor can
// be made alone: `start` is the index of y[e,0] in the whole tensor. Sums of uniform numbers stand
// for normal ones; all before the last rounding are integers, so both backends give the same bytes.
#include "common/convert.cuh"
#include "common/copy.cuh"

struct Words {
    u32 at[4];
};

__device__ __forceinline__ Words philox(u64 counter, u64 key) {
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0;
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c3 = (u32)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

// The first element this thread makes, of `per_block` ones.
__device__ __forceinline__ i64 first_element(int per_block) {
    return ((i64)blockIdx.x * 256 + threadIdx.x) * per_block;
}

__device__ __forceinline__ Words words_of(const i64* keys, i64 start, i64 first, int per_block) {
    return philox((u64)(start + first) / per_block, (u64)keys[blockIdx.y]);
}

__device__ __forceinline__ u32 half_of(const Words& words, int i) {
    return (words.at[i / 2] >> (16 * (i % 2))) & 0xffffu;
}

__device__ __forceinline__ bool starts_on(const void* address, int bytes) {
    return reinterpret_cast<u64>(address) % bytes == 0;
}

// Four bytes at y[first], as many of them as there are, in one store where the row allows it.
__device__ __forceinline__ void store_bytes(u8* y, i64 first, i64 N, u32 bytes) {
    if (first + 4 <= N && starts_on(y + first, 4)) {
        *reinterpret_cast<u32*>(y + first) = bytes;
        return;
    }
    for (int i = 0; i < 4; ++i)
        if (first + i < N) y[first + i] = (u8)(bytes >> (8 * i));
}

extern "C" __global__ void __launch_bounds__(256)
    mint_e2m1x2(const i64* keys, u8* y, i64 N, i64 y_stride, i64 start) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(16);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 16);
    if (first + 16 <= N && starts_on(y + first, 16)) {
        store16(y + first, make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]));
        return;
    }
    for (int i = 0; i < 4; ++i) store_bytes(y, first + 4 * i, N, words.at[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    mint_e4m3(const i64* keys, u8* y, i64 N, i64 y_stride, i64 start) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(4);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 4);
    u32 codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 w = words.at[i];
        const i32 sum = (i32)((w & 255u) + (w >> 8 & 255u) + (w >> 16 & 255u) + (w >> 24));
        codes |= (u32)f32_to_e4m3((float)(sum - 510)) << (8 * i);
    }
    store_bytes(y, first, N, codes);
}

// A scale's exponent field: 2 bits choose -1, 0, 0 or 1, and 14 bits below the threshold add 1.
__device__ __forceinline__ u32 scale_field(u32 half, i32 base, i32 threshold) {
    const i32 choice = (i32)(half >> 14);
    const i32 step = choice == 0 ? -1 : choice == 3 ? 1 : 0;
    return (u32)(base + step + ((i32)(half & 0x3fffu) < threshold ? 1 : 0));
}

extern "C" __global__ void __launch_bounds__(256)
    mint_ue8m0(const i64* keys, u8* y, i64 N, i64 y_stride, i64 start, i32 base, i32 threshold) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(8);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 8);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        u32 fields = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            fields |= scale_field(half_of(words, 4 * part + i), base, threshold) << (8 * i);
        store_bytes(y, first + 4 * part, N, fields);
    }
}

// E4M3 has exponent bias 7 and no mantissa here; the declaration keeps the exponent normal.
extern "C" __global__ void __launch_bounds__(256)
    mint_e4m3_scales(const i64* keys, u8* y, i64 N, i64 y_stride, i64 start, i32 base,
                     i32 threshold, i32 second) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(16);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 16);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const u32 low = scale_field(half_of(words, 2 * part), base, threshold) - second + 7;
        const u32 high = scale_field(half_of(words, 2 * part + 1), base, threshold) - second + 7;
        store_bytes(y, first + 4 * part, N, (low * 0x0101u | high * 0x01010000u) << 3);
    }
}

// Element i of a block's two, standing for a normal one: the sum has mean 0 and 262141 values.
__device__ __forceinline__ float normal_like(const Words& words, int i, float mean, float scale) {
    const u32 a = words.at[2 * i], b = words.at[2 * i + 1];
    const i32 sum = (i32)((a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16));
    return scale * (float)(sum - 131070) + mean;
}

extern "C" __global__ void __launch_bounds__(256)
    mint_bf16(const i64* keys, bf16* y, i64 N, i64 y_stride, i64 start, float mean, float scale) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(2);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 2);
    const bf16 low = f32_to_bf16(normal_like(words, 0, mean, scale));
    const bf16 high = f32_to_bf16(normal_like(words, 1, mean, scale));
    if (first + 2 <= N && starts_on(y + first, 4)) {
        *reinterpret_cast<u32*>(y + first) = (u32)low | (u32)high << 16;
        return;
    }
    y[first] = low;
    if (first + 1 < N) y[first + 1] = high;
}

extern "C" __global__ void __launch_bounds__(256)
    mint_f32(const i64* keys, float* y, i64 N, i64 y_stride, i64 start, float mean, float scale) {
    y += blockIdx.y * y_stride;
    const i64 first = first_element(2);
    if (first >= N) return;
    const Words words = words_of(keys, start, first, 2);
    y[first] = normal_like(words, 0, mean, scale);
    if (first + 1 < N) y[first + 1] = normal_like(words, 1, mean, scale);
}

// Floyd's sampling, one thread a row: id j is drawn from 0 .. experts - A + j, and when an earlier
// one is there already, that last id is taken, which none of them can be. Every set is equally
// likely.
extern "C" __global__ void __launch_bounds__(256)
    mint_expert_ids(i64* y, i32 V, i32 A, i64 key, i64 start, i32 experts) {
    const i32 row = (i32)first_element(1);
    if (row >= V) return;
    i64* ids = y + (i64)row * A;
    const u64 blocks = (u64)((A + 3) / 4);
    Words words;
    for (i32 j = 0; j < A; ++j) {
        if (j % 4 == 0) words = philox((u64)(start + row) * blocks + j / 4, (u64)key);
        const u32 last = (u32)(experts - A + j);
        i64 id = (i64)(((u64)words.at[j % 4] * (last + 1)) >> 32);
        for (i32 i = 0; i < j; ++i)
            if (ids[i] == id) {
                id = last;
                break;
            }
        ids[j] = id;
    }
}

// Host twins of mma.sync and ldmatrix; cuda/common/mma.cuh describes the fragments.
#pragma once
#include <stdint.h>
#include <string.h>

#include "runtime.h"

namespace host {

struct Product {
    float d[4];
    uint32_t a[4], b[2];
};

// Sixteen bits as a float; EXPONENT: the bits that are all set in what is not finite.
struct Bf16Value {
    static constexpr uint32_t EXPONENT = 0x7f80;
    static float of(uint32_t bits) {
        const uint32_t word = bits << 16;
        float value;
        memcpy(&value, &word, sizeof value);
        return value;
    }
};
struct F16Value {
    static constexpr uint32_t EXPONENT = 0x7c00;
    // Exponent and mantissa in a float's places read as value * 2^-112; the factor is exact.
    static float of(uint32_t bits) {
        const bool finite = (bits & EXPONENT) != EXPONENT;
        const uint32_t word = (bits & 0x8000) << 16 | (bits & 0x7fff) << 13 |
                              (finite ? 0 : 0x7f800000);
        float value;
        memcpy(&value, &word, sizeof value);
        return finite ? value * 0x1p112f : value;
    }
};

// Columns of zeros, such as those of rows that are not there, add nothing to finite rows.
template <class Value>
HOST_UNCHECKED void multiply_warp(void* const* slots, unsigned) {
    float a[16][16], b_columns[8][16];
    bool finite = true, zero[8];
    for (int lane = 0; lane < warpSize; ++lane) {
        const Product* mine = static_cast<Product*>(slots[lane]);
        const int group = lane / 4, pair = lane % 4;
        for (int part = 0; part < 4; ++part) {
            float* at = &a[group + 8 * (part & 1)][2 * pair + 8 * (part >> 1)];
            const uint32_t bits = mine->a[part];
            at[0] = Value::of(bits & 0xffff);
            at[1] = Value::of(bits >> 16);
            for (int shift = 0; shift < 32; shift += 16)
                finite &= (~bits >> shift & Value::EXPONENT) != 0;
        }
        if (pair == 0) zero[group] = true;
        for (int part = 0; part < 2; ++part) {
            float* at = &b_columns[group][2 * pair + 8 * part];
            at[0] = Value::of(mine->b[part] & 0xffff);
            at[1] = Value::of(mine->b[part] >> 16);
            zero[group] &= mine->b[part] == 0;
        }
    }
    for (int column = 0; column < 8; ++column) {
        if (zero[column] && finite) continue;
        for (int row = 0; row < 16; ++row) {
            Product* owner = static_cast<Product*>(slots[4 * (row % 8) + column / 2]);
            float& d = owner->d[2 * (row / 8) + column % 2];
            double sum = d;
            for (int k = 0; k < 16; ++k)
                sum += static_cast<double>(a[row][k]) * b_columns[column][k];
            d = static_cast<float>(sum);
        }
    }
}

template <class Value>
inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                      const char* file, int line) {
    require_full_warps(false);
    Product slot;
    memcpy(slot.d, d, sizeof d);
    memcpy(slot.a, a, sizeof a);
    memcpy(slot.b, b, sizeof b);
    warp_exchange(~0u, &slot, multiply_warp<Value>, false, file, line);
    memcpy(d, slot.d, sizeof d);
}

template <int count>
struct MatrixRows {
    uint16_t row[8];  // what this lane's address held
    uint32_t out[count];
};

template <int count, bool transposed>
HOST_UNCHECKED void deal_matrices(void* const* slots, unsigned) {
    for (int lane = 0; lane < warpSize; ++lane) {
        MatrixRows<count>* mine = static_cast<MatrixRows<count>*>(slots[lane]);
        const int major = lane / 4, minor = 2 * (lane % 4);
        for (int matrix = 0; matrix < count; ++matrix) {
            uint32_t pair[2];
            for (int i = 0; i < 2; ++i) {
                const int row = transposed ? minor + i : major;
                const int column = transposed ? major : minor + i;
                pair[i] = static_cast<MatrixRows<count>*>(slots[8 * matrix + row])->row[column];
            }
            mine->out[matrix] = pair[0] | pair[1] << 16;
        }
    }
}

// The lane that points at a row reads it itself, so that the checker sees who reads what.
template <int count, bool transposed>
inline void load_matrices(uint32_t (&out)[count], const void* row, const char* file, int line) {
    require_full_warps(false);
    MatrixRows<count> slot;
    if (lane_index() < 8 * count) {
        require_aligned16(row, file, line);
        const uint4 words = *static_cast<const uint4*>(row);
        memcpy(slot.row, &words, sizeof slot.row);
    }
    warp_exchange(~0u, &slot, deal_matrices<count, transposed>, false, file, line);
    memcpy(out, slot.out, sizeof out);
}

}  // namespace host

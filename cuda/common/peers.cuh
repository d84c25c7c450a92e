// Letters: what a rank writes into the memory of another one, which waits for it there.
//
// A letter is a value and the stamp of its turn, 8 bytes that are written and read in one access. So
// whoever sees the stamp has the value: there is no flag behind it, and no fence between them. Two
// neighbours go in one access of 16 bytes, of which each half is whole by itself and no more: each
// has a stamp of its own. Letters order nothing else.
//
// On the host letters are atomic updates, so the checker takes anything else that meets them for a
// race.
#pragma once

#include "common/copy.cuh"

template <int Count>
struct Letters {
    static_assert(Count == 1 || Count == 2, "a thread has one letter or two in one access");
    u64 at[Count];
};

__device__ __forceinline__ u64 letter_of(u32 value, u32 stamp) { return (u64)stamp << 32 | value; }
__device__ __forceinline__ u32 value_of(u64 letter) { return (u32)letter; }
__device__ __forceinline__ u32 stamp_of(u64 letter) { return (u32)(letter >> 32); }

#ifdef DSV4_HOST

template <int Count>
__device__ __forceinline__ void send_letters(u64* to, const Letters<Count>& letters) {
    if constexpr (Count == 2) require_aligned16(to);
    for (int i = 0; i < Count; ++i) atomicExch(to + i, letters.at[i]);
}
template <int Count>
__device__ __forceinline__ Letters<Count> look_at_letters(const u64* from) {
    if constexpr (Count == 2) require_aligned16(from);
    Letters<Count> seen;
    for (int i = 0; i < Count; ++i) seen.at[i] = atomicOr(const_cast<u64*>(from) + i, 0);
    return seen;
}
// Lets whoever writes the letter run: there may be fewer cores than blocks.
__device__ __forceinline__ void between_looks() { __nanosleep(0); }

#else

template <int Count>
__device__ __forceinline__ void send_letters(u64* to, const Letters<Count>& letters) {
    if constexpr (Count == 2)
        asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                     :
                     : "l"(to), "l"(letters.at[0]), "l"(letters.at[1])
                     : "memory");
    else
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;"
                     :
                     : "l"(to), "l"(letters.at[0])
                     : "memory");
}
template <int Count>
__device__ __forceinline__ Letters<Count> look_at_letters(const u64* from) {
    Letters<Count> seen;
    if constexpr (Count == 2)
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(seen.at[0]), "=l"(seen.at[1])
                     : "l"(from)
                     : "memory");
    else
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
                     : "=l"(seen.at[0])
                     : "l"(from)
                     : "memory");
    return seen;
}
__device__ __forceinline__ void between_looks() {}

#endif

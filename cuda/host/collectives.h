// Barriers, votes and shuffles: every one is an exchange whose last arriver computes for all.
#pragma once
#include <string.h>

#include "runtime.h"

HOST_COLLECTIVE inline void __syncthreads(HOST_SITE_PARAMETERS) {
    host::block_exchange(nullptr, nullptr, file, line);
}

namespace host {

HOST_UNCHECKED inline void fold_or(void* const* slots, int count) {
    int any = 0;
    for (int i = 0; i < count; ++i) any |= slots[i] && *static_cast<int*>(slots[i]);
    for (int i = 0; i < count; ++i)
        if (slots[i]) *static_cast<int*>(slots[i]) = any;
}
HOST_UNCHECKED inline void fold_and(void* const* slots, int count) {
    int all = 1;
    for (int i = 0; i < count; ++i) all &= !slots[i] || *static_cast<int*>(slots[i]);
    for (int i = 0; i < count; ++i)
        if (slots[i]) *static_cast<int*>(slots[i]) = all;
}
HOST_UNCHECKED inline void fold_count(void* const* slots, int count) {
    int sum = 0;
    for (int i = 0; i < count; ++i) sum += slots[i] && *static_cast<int*>(slots[i]);
    for (int i = 0; i < count; ++i)
        if (slots[i]) *static_cast<int*>(slots[i]) = sum;
}

}  // namespace host

HOST_COLLECTIVE inline int __syncthreads_or(int predicate, HOST_SITE_PARAMETERS) {
    int slot = predicate != 0;
    host::block_exchange(&slot, host::fold_or, file, line);
    return slot;
}
HOST_COLLECTIVE inline int __syncthreads_and(int predicate, HOST_SITE_PARAMETERS) {
    int slot = predicate != 0;
    host::block_exchange(&slot, host::fold_and, file, line);
    return slot;
}
HOST_COLLECTIVE inline int __syncthreads_count(int predicate, HOST_SITE_PARAMETERS) {
    int slot = predicate != 0;
    host::block_exchange(&slot, host::fold_count, file, line);
    return slot;
}

HOST_COLLECTIVE inline void __syncwarp(unsigned mask = ~0u, HOST_SITE_PARAMETERS) {
    host::warp_exchange(mask, nullptr, nullptr, true, file, line);
}
inline unsigned __activemask() { return host::live_lanes(); }

namespace host {

template <class T>
struct Shuffle {
    T value;
    int source;  // lane to read; a lane outside the mask gives 0xFF bytes
};

template <class T>
HOST_UNCHECKED void shuffle_lanes(void* const* slots, unsigned mask) {
    T before[warpSize];
    for (unsigned left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        before[lane] = static_cast<Shuffle<T>*>(slots[lane])->value;
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
        Shuffle<T>* slot = static_cast<Shuffle<T>*>(slots[__builtin_ctz(left)]);
        if (mask >> slot->source & 1) {
            slot->value = before[slot->source];
        } else {
            memset(&slot->value, 0xff, sizeof slot->value);
        }
    }
}

template <class T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles four- and eight-byte values");
    Shuffle<T> slot{value, source};
    warp_exchange(mask, &slot, shuffle_lanes<T>, false, file, line);
    return slot.value;
}

}  // namespace host

template <class T>
HOST_COLLECTIVE T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
                              HOST_SITE_PARAMETERS) {
    const int lane = host::lane_index();
    return host::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), file, line);
}
template <class T>
HOST_COLLECTIVE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                                 HOST_SITE_PARAMETERS) {
    const int lane = host::lane_index();
    const int source = lane - static_cast<int>(delta);
    return host::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, file, line);
}
template <class T>
HOST_COLLECTIVE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                                   HOST_SITE_PARAMETERS) {
    const int lane = host::lane_index();
    const int source = lane + static_cast<int>(delta);
    return host::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, file, line);
}
template <class T>
HOST_COLLECTIVE T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                                  HOST_SITE_PARAMETERS) {
    const int lane = host::lane_index();
    const int source = lane ^ lane_mask;
    return host::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, file, line);
}

namespace host {

HOST_UNCHECKED inline void vote(void* const* slots, unsigned mask) {
    unsigned ballot = 0;
    for (unsigned left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        if (*static_cast<unsigned*>(slots[lane])) ballot |= 1u << lane;
    }
    for (unsigned left = mask; left != 0; left &= left - 1)
        *static_cast<unsigned*>(slots[__builtin_ctz(left)]) = ballot;
}

template <class T>
struct Match {
    T value;
    unsigned same;
};
template <class T>
HOST_UNCHECKED void match(void* const* slots, unsigned mask) {
    for (unsigned left = mask; left != 0; left &= left - 1) {
        Match<T>* mine = static_cast<Match<T>*>(slots[__builtin_ctz(left)]);
        mine->same = 0;
        for (unsigned others = mask; others != 0; others &= others - 1) {
            const int other = __builtin_ctz(others);
            if (static_cast<Match<T>*>(slots[other])->value == mine->value)
                mine->same |= 1u << other;
        }
    }
}

enum class Fold { add, min, max, bit_and, bit_or, bit_xor };
template <class T, Fold fold>
HOST_UNCHECKED void fold_lanes(void* const* slots, unsigned mask) {
    T total = *static_cast<T*>(slots[__builtin_ctz(mask)]);
    for (unsigned left = mask & (mask - 1); left != 0; left &= left - 1) {
        const T value = *static_cast<T*>(slots[__builtin_ctz(left)]);
        if (fold == Fold::add) total = static_cast<T>(total + value);
        if (fold == Fold::min) total = value < total ? value : total;
        if (fold == Fold::max) total = value > total ? value : total;
        if (fold == Fold::bit_and) total = static_cast<T>(total & value);
        if (fold == Fold::bit_or) total = static_cast<T>(total | value);
        if (fold == Fold::bit_xor) total = static_cast<T>(total ^ value);
    }
    for (unsigned left = mask; left != 0; left &= left - 1)
        *static_cast<T*>(slots[__builtin_ctz(left)]) = total;
}

}  // namespace host

HOST_COLLECTIVE inline unsigned __ballot_sync(unsigned mask, int predicate, HOST_SITE_PARAMETERS) {
    unsigned slot = predicate != 0;
    host::warp_exchange(mask, &slot, host::vote, false, file, line);
    return slot;
}
HOST_COLLECTIVE inline int __any_sync(unsigned mask, int predicate, HOST_SITE_PARAMETERS) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
HOST_COLLECTIVE inline int __all_sync(unsigned mask, int predicate, HOST_SITE_PARAMETERS) {
    return __ballot_sync(mask, predicate == 0, file, line) == 0;
}
template <class T>
HOST_COLLECTIVE unsigned __match_any_sync(unsigned mask, T value, HOST_SITE_PARAMETERS) {
    host::Match<T> slot{value, 0};
    host::warp_exchange(mask, &slot, host::match<T>, false, file, line);
    return slot.same;
}

#define HOST_REDUCE(name, fold)                                                                \
    HOST_COLLECTIVE inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value,      \
                                                           HOST_SITE_PARAMETERS) {             \
        host::warp_exchange(mask, &value, host::fold_lanes<unsigned, host::Fold::fold>, false, \
                            file, line);                                                       \
        return value;                                                                          \
    }
HOST_REDUCE(add, add)
HOST_REDUCE(min, min)
HOST_REDUCE(max, max)
HOST_REDUCE(and, bit_and)
HOST_REDUCE(or, bit_or)
HOST_REDUCE(xor, bit_xor)
#undef HOST_REDUCE
#define HOST_REDUCE(name)                                                                       \
    HOST_COLLECTIVE inline int __reduce_##name##_sync(unsigned mask, int value,                 \
                                                      HOST_SITE_PARAMETERS) {                   \
        host::warp_exchange(mask, &value, host::fold_lanes<int, host::Fold::name>, false, file, \
                            line);                                                              \
        return value;                                                                           \
    }
HOST_REDUCE(add)
HOST_REDUCE(min)
HOST_REDUCE(max)
#undef HOST_REDUCE

// Atomic read-modify-writes, real ones: several workers may run blocks at the same time.
//
// One worker gives one order; with more, float sums depend on timing as they do on the device.
#pragma once
#include <string.h>

#include "runtime.h"

namespace host {

template <class T, class Change>
HOST_UNCHECKED inline T atomic_update(T* address, Change change) {
    note_atomic(address, sizeof(T));
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do {
        after = change(before);
    } while (!__atomic_compare_exchange(address, &before, &after, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED));
    return before;
}

template <class T>
struct Same {
    using type = T;  // keeps literals from taking part in deduction
};
template <class T>
using Value = typename Same<T>::type;

}  // namespace host

#define HOST_ATOMIC(name, expression)                                                         \
    template <class T>                                                                        \
    HOST_UNCHECKED T atomic##name(T* address, host::Value<T> value) {                         \
        return host::atomic_update(address,                                                   \
                                   [value](T before) { return static_cast<T>(expression); }); \
    }
HOST_ATOMIC(Add, before + value)
HOST_ATOMIC(Sub, before - value)
HOST_ATOMIC(Max, before > value ? before : value)
HOST_ATOMIC(Min, before < value ? before : value)
HOST_ATOMIC(And, before& value)
HOST_ATOMIC(Or, before | value)
HOST_ATOMIC(Xor, before ^ value)
HOST_ATOMIC(Exch, value)
HOST_ATOMIC(Inc, before >= value ? 0 : before + 1)
HOST_ATOMIC(Dec, before == 0 || before > value ? value : before - 1)
#undef HOST_ATOMIC

template <class T>
HOST_UNCHECKED T atomicCAS(T* address, host::Value<T> expected, host::Value<T> value) {
    return host::atomic_update(address, [=](T before) {
        return memcmp(&before, &expected, sizeof before) == 0 ? static_cast<T>(value) : before;
    });
}

HOST_UNCHECKED inline void __threadfence() {
    host::note_fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
HOST_UNCHECKED inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HOST_UNCHECKED inline void __threadfence_system() { __threadfence(); }

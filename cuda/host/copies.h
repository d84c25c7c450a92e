// Host twins of cp.async. Eager: a copy lands when it is issued, which shows a missing barrier
// before a buffer is overwritten; check mode knows from when to when it is on its way all the same.
// Deferred: it lands at the wait, which shows a missing wait.
#pragma once
#include <stdint.h>

#include "runtime.h"

namespace host {

// The copies that one thread has started and not waited for.
struct PendingCopy {
    void* to;
    const void* from;  // null: zero bytes
    uint32_t bytes, group;
};

struct CopyQueue {
    PendingCopy* copies;
    int count, capacity;
    uint32_t group;  // number of commits so far
};

CopyQueue& copy_queue();
void append_copy(const PendingCopy& copy);

// Typed accesses, which the checker sees.
template <class Value>
__attribute__((noinline)) void land_as(const PendingCopy& copy) {
    *static_cast<Value*>(copy.to) = copy.from == nullptr ? Value{}
                                                         : *static_cast<const Value*>(copy.from);
}

inline void land(const PendingCopy& copy) {
    if (copy.bytes == 16) return land_as<uint4>(copy);
    if (copy.bytes == 8) return land_as<uint64_t>(copy);
    land_as<uint32_t>(copy);
}

// bytes: 4, 8 or 16, on which both addresses must lie.
HOST_UNCHECKED inline void start_copy(void* shared, const void* global, bool valid,
                                      uint32_t bytes = 16) {
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % bytes != 0)
        fail("misaligned", "an address of an asynchronous copy is not a multiple of its size", "",
             0);
    const PendingCopy copy{shared, valid ? global : nullptr, bytes, copy_queue().group};
#ifdef DSV4_CP_ASYNC_DEFERRED
    append_copy(copy);
#else
    land(copy);
#ifdef DSV4_CHECK
    note_copy_starts(shared, bytes);
    append_copy(copy);
#endif
#endif
}

HOST_UNCHECKED inline void commit_copies() { ++copy_queue().group; }

HOST_UNCHECKED inline void wait_for_copies(uint32_t pending) {
    CopyQueue& queue = copy_queue();
    int kept = 0;
    for (int i = 0; i < queue.count; ++i) {
        const PendingCopy copy = queue.copies[i];
        const bool committed = copy.group < queue.group;
        if (committed && copy.group + pending < queue.group) {
#ifdef DSV4_CP_ASYNC_DEFERRED
            land(copy);
#else
            note_copy_lands(copy.to, copy.bytes);
#endif
        } else {
            queue.copies[kept++] = copy;
        }
    }
    queue.count = kept;
}

}  // namespace host

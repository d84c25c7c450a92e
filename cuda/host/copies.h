// Host twins of cp.async. Eager: a copy lands when it is issued, which shows a missing barrier
// before a buffer is overwritten. Deferred: it lands at the wait, which shows a missing wait.
#pragma once
#include <stdint.h>

#include "runtime.h"

namespace host {

// The copies that one thread has started and not waited for.
struct PendingCopy {
    uint4* to;
    const uint4* from;  // null: sixteen zero bytes
    uint32_t group;
};

struct CopyQueue {
    PendingCopy* copies;
    int count, capacity;
    uint32_t group;  // number of commits so far
};

CopyQueue& copy_queue();
void append_copy(const PendingCopy& copy);

__attribute__((noinline)) inline void land(const PendingCopy& copy) {
    *copy.to = copy.from == nullptr ? uint4{0, 0, 0, 0} : *copy.from;
}

HOST_UNCHECKED inline void start_copy(void* shared, const void* global, bool valid) {
    require_aligned16(shared);
    require_aligned16(global);
    const uint4* from = valid ? static_cast<const uint4*>(global) : nullptr;
    const PendingCopy copy{static_cast<uint4*>(shared), from, copy_queue().group};
#ifdef DSV4_CP_ASYNC_DEFERRED
    append_copy(copy);
#else
    land(copy);
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
            land(copy);
        } else {
            queue.copies[kept++] = copy;
        }
    }
    queue.count = kept;
}

}  // namespace host

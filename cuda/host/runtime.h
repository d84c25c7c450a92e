// What the shim headers, the scheduler and the checker share.
//
// One library copy runs one block at a time on one OS thread, so everything here is plain global
// state: no locks and no thread-local storage. More workers = more copies of the library.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// Shim code that runs on behalf of several CUDA threads must not be instrumented as one of them.
#if defined(__clang__)
#define HOST_UNCHECKED __attribute__((disable_sanitizer_instrumentation))
#else
#define HOST_UNCHECKED __attribute__((no_sanitize("thread")))
#endif

// clang would merge two barriers at the ends of two branches into one, and lose their lines.
#if defined(__clang__)
#define HOST_COLLECTIVE __attribute__((nomerge))
#else
#define HOST_COLLECTIVE
#endif

// Where a collective was called; the defaults of the shim's functions fill these in.
#define HOST_SITE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace host {

constexpr int max_threads = 1024;
constexpr int max_warps = max_threads / warpSize;
constexpr size_t max_shared_bytes = 227 * 1024;  // per block, sm_90 and sm_100
constexpr int max_cluster = 16;                  // blocks

// Called once by the last thread to arrive; slots[i] is what thread or lane i left, null if absent.
using BlockExchange = void (*)(void* const* slots, int count);
using WarpExchange = void (*)(void* const* slots, unsigned mask);

// Waits for every live thread of the block, then runs exchange (if any) before anybody goes on.
void block_exchange(void* slot, BlockExchange exchange, const char* file, int line);

// Waits for every live lane in mask. Orders memory only when `orders_memory` is set: CUDA promises
// that for __syncwarp and not for shuffles and votes.
void warp_exchange(unsigned mask, void* slot, WarpExchange exchange, bool orders_memory,
                   const char* file, int line);

// Waits for every live thread of the block's cluster. Orders their shared memory, and no other.
void cluster_barrier(const char* file, int line);

// The running block's place in its cluster, and where its shared variable `own` lies in block `rank`
// of it.
int cluster_rank();
void* shared_of(void* own, int rank, const char* file, int line);

// Counts bytes that blocks of a cluster send to one of them.
struct Inbox {
    uint32_t expected, received;
};
void open_inbox(Inbox* own, uint32_t bytes);
void enter_cluster();
// Where `size` bytes for `own` of block `rank` go; they count as received there.
void* letter_to(Inbox* box, void* own, int rank, size_t size, const char* file, int line);
void await_mail(const Inbox* own, const char* file, int line);

// The lane of the running thread, and the lanes of its warp that have not returned.
int lane_index();
unsigned live_lanes();

// Fails the kernel unless the warp (or every warp of the block) has all its 32 lanes.
void require_full_warps(bool of_block);

// Names the atomic access to the checker and notes __threadfence; no-ops outside check mode.
void note_atomic(const void* address, size_t size);
void note_fence();

// The running thread has started an asynchronous copy to that place, which is there already, or waited
// for it; no-ops outside check mode.
void note_copy_starts(const void* to, size_t size);
void note_copy_lands(const void* to, size_t size);

// The running thread has called wait_for_previous, or let_next_start (common/overlap.cuh).
void note_wait();
void note_start(const char* file, int line);

// Gives the block up and reports; kind is one of KernelFault's kinds.
[[noreturn]] void fail(const char* kind, const char* text, const char* file, int line);

// The device faults on such an address; this processor might not, or might end the process.
inline void require_aligned16(const void* address, HOST_SITE_PARAMETERS) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        fail("misaligned", "the address of a 16-byte access is not a multiple of 16", file, line);
}

// One kernel of the compiled file; generated lines at its end fill the table.
struct Export {
    using Call = void (*)(const uint64_t* values);
    const char* name;
    Call call;
    const char* signature;
    Export* next;
    Export(const char* name, Call call, const char* signature);
};

}  // namespace host

extern char dsv4_dynamic_shared[host::max_shared_bytes];

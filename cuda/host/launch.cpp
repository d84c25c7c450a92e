// The functions that Python calls: names and signatures of the kernels, and a launch.
#include <stdlib.h>

#include "block.h"

namespace host {
namespace {

Export* exports;

Export* export_at(int index) {
    Export* entry = exports;
    while (entry != nullptr && index-- > 0) entry = entry->next;
    return entry;
}

void begin_launch(const Launch* given, Fault* result) {
    launch = given;
    fault = result;
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    block.thread_count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
    block.warp_count = (block.thread_count + warpSize - 1) / warpSize;
    for (unsigned i = 0; i < static_cast<unsigned>(block.thread_count); ++i)
        block.threads[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y,
                                  i / blockDim.x / blockDim.y};
    for (int i = 0; i < block.warp_count; ++i) {
        const int lanes = block.thread_count - i * warpSize;
        block.warps[i].existing = lanes >= warpSize ? ~0u : (1u << lanes) - 1;
    }
    cluster.size = static_cast<int>(launch->cluster);
    seed_random(launch->seed);
}

// A random permutation of the clusters, or null for the natural order.
unsigned* order_of_clusters(uint64_t count) {
    if (!launch->shuffle) return nullptr;
    unsigned* order = static_cast<unsigned*>(malloc(count * sizeof *order));
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t other = random_number() % (i + 1);
        order[i] = order[other];
        order[other] = static_cast<unsigned>(i);
    }
    return order;
}

}  // namespace

Export::Export(const char* name, Call call, const char* signature)
    : name(name), call(call), signature(signature), next(exports) {
    exports = this;
}

HOST_UNCHECKED void note_wait() { block.threads[block.current].waited = true; }

HOST_UNCHECKED void note_start(const char* file, int line) {
    if (checking && launch->passes_on && !block.threads[block.current].waited)
        fail(
            "early-start",
            "let_next_start before wait_for_previous: the kernel is declared to pass on what is in "
            "front of it",
            file, line);
}

#ifndef DSV4_CHECK
void note_atomic(const void*, size_t) {}
void note_fence() {}
void note_copy_starts(const void*, size_t) {}
void note_copy_lands(const void*, size_t) {}
#endif

}  // namespace host

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* dsv4_kernel_name(int index) {
    const host::Export* entry = host::export_at(index);
    return entry == nullptr ? nullptr : entry->name;
}

EXPORTED const char* dsv4_kernel_signature(int index) {
    const host::Export* entry = host::export_at(index);
    return entry == nullptr ? nullptr : entry->signature;
}

EXPORTED uint64_t dsv4_static_shared_bytes() {
    const host::StaticShared statics = host::static_shared();
    return static_cast<uint64_t>(statics.end - statics.first);
}

// Runs blocks until none is left or one fails; the fault then says how.
EXPORTED void dsv4_launch(int index, const uint64_t* values, const host::Launch* launch,
                          host::Fault* fault) {
    using namespace host;
    const Export* entry = export_at(index);
    watch_signals();
    begin_launch(launch, fault);
    begin_kernel(entry->call, values);
    begin_clusters();
    const uint64_t count = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z / cluster.size;
    unsigned* order = order_of_clusters(count);
#ifdef DSV4_CHECK
    check_launch_begins();
#endif
    while (fault->kind[0] == 0) {
        const uint64_t number = __atomic_fetch_add(launch->next_block, 1, __ATOMIC_RELAXED);
        if (number >= count) break;
        run_cluster(order != nullptr ? order[number] : static_cast<unsigned>(number));
    }
#ifdef DSV4_CHECK
    check_launch_ends();
#endif
    free(order);
    host::launch = nullptr;
}

// What happens before what, for the race checker.
//
// Two accesses of one block are ordered when a __syncthreads lies between (their phase differs) or,
// within a warp, a __syncwarp does: each lane keeps a vector of the clocks it knows of its warp's
// lanes. Shuffles and votes order no memory. Two blocks are ordered only when the earlier one did
// __threadfence and then an atomic on an address that the later one updated too; blocks run one
// after the other here, so the lists below are complete when the later one asks.
#include <stdlib.h>
#include <string.h>

#include "checker.h"
#include "list.h"

namespace host {
namespace {

struct BlockStart {
    uint32_t phase, number;
};

// An atomic by a block that had fenced.
struct Release {
    const void* address;
    uint32_t block;
};

List<BlockStart> starts;
List<Release> releases;
List<const void*> acquired;  // addresses that the running block updated
uint32_t phase;
bool fenced;
uint32_t clocks[max_threads][warpSize];

bool released_to_me(uint32_t other_block) {
    for (size_t i = 0; i < releases.count; ++i) {
        if (releases.items[i].block != other_block) continue;
        for (size_t j = 0; j < acquired.count; ++j)
            if (acquired.items[j] == releases.items[i].address) return true;
    }
    return false;
}

}  // namespace

void forget_order() {
    phase = 0;
    starts.clear();
    releases.clear();
    acquired.clear();
}

void begin_phase() {
    ++phase;
    memset(clocks, 0, sizeof clocks[0] * block.thread_count);
    for (int i = 0; i < block.thread_count; ++i) clocks[i][i % warpSize] = 1;
}

void begin_block_order(uint32_t block_number) {
    begin_phase();
    starts.push({phase, block_number});
    acquired.count = 0;
    fenced = false;
}

void join_lanes(int warp, unsigned mask) {
    uint32_t joined[warpSize] = {};
    for (unsigned left = mask; left != 0; left &= left - 1) {
        const uint32_t* lane = clocks[warp * warpSize + __builtin_ctz(left)];
        for (int i = 0; i < warpSize; ++i) joined[i] = joined[i] < lane[i] ? lane[i] : joined[i];
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        memcpy(clocks[warp * warpSize + lane], joined, sizeof joined);
        ++clocks[warp * warpSize + lane][lane];
    }
}

Access access_now(uint32_t site, bool atomic) {
    const int me = block.current;
    return {phase, clocks[me][me % warpSize], site, static_cast<uint16_t>(me), atomic};
}

bool of_this_block(const Access& access) {
    return access.phase >= starts.items[starts.count - 1].phase;
}

uint32_t block_number_of(const Access& access) {
    size_t low = 0, high = starts.count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        (starts.items[middle].phase <= access.phase ? low : high) = middle;
    }
    return starts.items[low].number;
}

bool ordered_before_me(const Access& earlier, bool shared) {
    const int me = block.current;
    if (earlier.phase == phase) {
        if (earlier.thread == me) return true;
        if (earlier.thread / warpSize != me / warpSize) return false;
        return clocks[me][earlier.thread % warpSize] >= earlier.clock;
    }
    if (earlier.phase == 0 || shared || of_this_block(earlier)) return true;
    return released_to_me(block_number_of(earlier));
}

void order_by_fence() { fenced = true; }

void order_by_atomic(const void* address) {
    if (fenced) releases.push({address, starts.items[starts.count - 1].number});
    for (size_t i = 0; i < acquired.count; ++i)
        if (acquired.items[i] == address) return;
    acquired.push(address);
}

}  // namespace host

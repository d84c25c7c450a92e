// What happens before what, for the race checker.
//
// Two accesses of one block are ordered when a __syncthreads lies between (their phase differs) or,
// within a warp, a __syncwarp does: each lane keeps a vector of the clocks it knows of its warp's
// lanes. Shuffles and votes order no memory. Two blocks of a cluster are ordered in their shared memory
// when a cluster barrier lies between. Others are ordered only when the earlier one did __threadfence and then an
// atomic on an address that the later one updated too; clusters run one after the other here, so the
// lists below are complete when the later one asks.
#include <stdlib.h>
#include <string.h>

#include "checker.h"
#include "list.h"

namespace host {
namespace {

// Of a block, or of its next turn behind a cluster barrier.
struct Turn {
    uint32_t phase, number;
    uint32_t cluster;  // as often as clusters began
    int round;         // barriers before it
};

// An atomic by a block that had fenced.
struct Release {
    const void* address;
    uint32_t block;
};

// What a block has done, of each rank.
struct Done {
    List<const void*> acquired;  // addresses that it updated
    bool fenced;
    uint32_t entered;  // the phase in which its first thread entered the cluster; 0: none has
};

List<Turn> turns;
List<Release> releases;
Done done[max_cluster];
uint32_t phase, clusters,
    cluster_phase;  // barriers; clusters that began; barriers when this one did
uint32_t clocks[max_threads][warpSize];

bool released_to_me(uint32_t other_block) {
    for (size_t i = 0; i < releases.count; ++i) {
        if (releases.items[i].block != other_block) continue;
        const List<const void*>& acquired = done[cluster.rank].acquired;
        for (size_t j = 0; j < acquired.count; ++j)
            if (acquired.items[j] == releases.items[i].address) return true;
    }
    return false;
}

const Turn& this_turn() { return turns.items[turns.count - 1]; }

const Turn& turn_of(const Access& access) {
    if (access.phase >= this_turn().phase) return this_turn();
    size_t low = 0, high = turns.count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        (turns.items[middle].phase <= access.phase ? low : high) = middle;
    }
    return turns.items[low];
}

}  // namespace

void forget_order() {
    phase = clusters = 0;
    turns.clear();
    releases.clear();
    for (Done& of_rank : done) of_rank.acquired.clear();
}

void begin_phase() {
    ++phase;
    memset(clocks, 0, sizeof clocks[0] * block.thread_count);
    for (int i = 0; i < block.thread_count; ++i) clocks[i][i % warpSize] = 1;
}

void begin_cluster_order() {
    ++clusters;
    cluster_phase = phase + 1;
    for (int rank = 0; rank < cluster.size; ++rank) {
        done[rank].acquired.count = 0;
        done[rank].fenced = false;
        done[rank].entered = 0;
    }
}

void begin_turn_order(uint32_t block_number) {
    begin_phase();
    turns.push({phase, block_number, clusters, cluster.round});
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

bool of_this_cluster(const Access& access) { return access.phase >= cluster_phase; }

uint32_t block_number_of(const Access& access) { return turn_of(access).number; }

bool ordered_before_me(const Access& earlier, bool shared) {
    const int me = block.current;
    if (earlier.phase == phase) {
        if (earlier.thread == me) return true;
        if (earlier.thread / warpSize != me / warpSize) return false;
        return clocks[me][earlier.thread % warpSize] >= earlier.clock;
    }
    if (earlier.phase == 0) return true;
    const Turn &then = turn_of(earlier), &now = this_turn();
    if (then.number == now.number) return true;
    if (shared && (then.cluster != now.cluster || then.round < now.round)) return true;
    return released_to_me(then.number);
}

void note_entered() {
    if (done[cluster.rank].entered == 0) done[cluster.rank].entered = phase;
}

bool before_entry(const Access& access, int rank) { return access.phase < done[rank].entered; }

void order_by_fence() { done[cluster.rank].fenced = true; }

void order_by_atomic(const void* address) {
    List<const void*>& acquired = done[cluster.rank].acquired;
    if (done[cluster.rank].fenced) releases.push({address, this_turn().number});
    for (size_t i = 0; i < acquired.count; ++i)
        if (acquired.items[i] == address) return;
    acquired.push(address);
}

}  // namespace host

// Who waits for whom: block barriers, warp collectives, and the asynchronous copies of a thread.
#include <stdio.h>
#include <stdlib.h>

#include "block.h"

namespace host {
namespace {

CopyQueue copy_queues[max_cluster * max_threads];

// Check mode is stricter than sm_70: everybody must wait, and at one line.
void require_one_line(const int* threads, int count, const char* text) {
#ifdef DSV4_CHECK
    const int blamed = find_divergent(threads, count);
    if (blamed < 0) return;
    make_current(blamed);
    fail("divergent-barrier", text, block.threads[blamed].file, block.threads[blamed].line);
#endif
}

void require_one_line_of_block() {
    int waiting[max_threads];
    int count = 0;
    const Thread* returned = nullptr;
    for (int i = 0; i < block.thread_count; ++i) {
        if (!block.threads[i].exited) {
            waiting[count++] = i;
        } else if (returned == nullptr) {
            returned = &block.threads[i];
        }
    }
    require_one_line(waiting, count, "threads of the block wait at different barriers");
    if (returned == nullptr) return;
    char text[200];
    snprintf(text, sizeof text,
             "%d threads wait at a barrier that %d others, first thread (%u,%u,%u), will never "
             "reach: they returned",
             count, block.exited_count, returned->index.x, returned->index.y, returned->index.z);
    make_current(waiting[0]);
    fail("deadlock", text, block.threads[waiting[0]].file, block.threads[waiting[0]].line);
}

void require_one_line_of_lanes(int warp_index, unsigned lanes) {
    int waiting[warpSize];
    int count = 0;
    for (unsigned left = lanes; left != 0; left &= left - 1)
        waiting[count++] = warp_index * warpSize + __builtin_ctz(left);
    require_one_line(waiting, count, "lanes of one warp wait at different collectives");
}

[[noreturn]] void fail_for_returned_lane(int waiting) {
    make_current(waiting);
    fail("deadlock", "a lane named in the mask of this collective has returned",
         block.threads[waiting].file, block.threads[waiting].line);
}

// Since sm_70 a thread that returned no longer holds a barrier back.
bool barrier_is_complete() {
    return block.arrived_count > 0 &&
           block.arrived_count + block.exited_count == block.thread_count;
}

void meet_cluster(void* const*, int) {}

void complete_barrier() {
    if (checking) require_one_line_of_block();
    if (block.exchange == meet_cluster) {
        block.meets_cluster = true;
#ifdef DSV4_CHECK
        check_block_synced();
#endif
        return;
    }
    if (block.exchange != nullptr) block.exchange(block.slots, block.thread_count);
    block.exchange = nullptr;
    block.arrived_count = 0;
    for (int i = 0; i < block.thread_count; ++i) {
        block.slots[i] = nullptr;
        if (!block.threads[i].exited) release(i);
    }
#ifdef DSV4_CHECK
    check_block_synced();
#endif
}

bool group_is_complete(const Warp& warp, const Group& group) {
    return group.arrived == (group.mask & warp.existing & ~warp.exited);
}

void complete_group(int warp_index, Group* group) {
    Warp& warp = block.warps[warp_index];
    if (checking) require_one_line_of_lanes(warp_index, group->arrived);
    if (group->exchange != nullptr) group->exchange(warp.slots, group->arrived);
    const unsigned arrived = group->arrived;
#ifdef DSV4_CHECK
    if (group->orders_memory) check_warp_synced(warp_index, arrived);
#endif
    *group = warp.groups[--warp.group_count];
    for (unsigned left = arrived; left != 0; left &= left - 1)
        release(warp_index * warpSize + __builtin_ctz(left));
}

Group* join_group(Warp& warp, unsigned mask, WarpExchange exchange, bool orders_memory,
                  const char* file, int line) {
    // Masks of pending groups may overlap: a lane waits in one group at a time, and groups that
    // wait for each other end as a deadlock.
    for (int i = 0; i < warp.group_count; ++i) {
        Group& group = warp.groups[i];
        if (group.mask != mask) continue;
        if (group.exchange != exchange)
            fail("divergent-barrier", "lanes of one warp met in different collectives", file, line);
        return &group;
    }
    Group& group = warp.groups[warp.group_count++];
    group = {mask, 0, exchange, orders_memory};
    return &group;
}

#ifdef DSV4_CHECK
#define note_arrival(thread) check_arrives(thread, HOST_CALLER)
#else
#define note_arrival(thread) ((void)0)
#endif

}  // namespace

void begin_collectives() {
    for (int i = 0; i < block.warp_count; ++i) {
        block.warps[i].exited = 0;
        block.warps[i].group_count = 0;
    }
    CopyQueue* const queues = copy_queues + cluster.rank * max_threads;
    for (int i = 0; i < block.thread_count; ++i) queues[i].count = queues[i].group = 0;
}

void begin_turn() {
    block.meets_cluster = false;
    block.arrived_count = 0;
    block.exchange = nullptr;
    for (int i = 0; i < block.thread_count; ++i) block.slots[i] = nullptr;
}

void collectives_see_return(int thread) {
    const int warp_index = thread / warpSize;
    Warp& warp = block.warps[warp_index];
    const unsigned bit = 1u << (thread % warpSize);
    warp.exited |= bit;
    for (int i = warp.group_count - 1; i >= 0; --i) {
        Group& group = warp.groups[i];
        if ((group.mask & bit) == 0) continue;
        if (checking) fail_for_returned_lane(warp_index * warpSize + __builtin_ctz(group.arrived));
        if (group_is_complete(warp, group)) complete_group(warp_index, &group);
    }
    if (barrier_is_complete()) complete_barrier();
}

void block_exchange(void* slot, BlockExchange exchange, const char* file, int line) {
    const int me = block.current;
    Thread& thread = block.threads[me];
    thread.file = file;
    thread.line = line;
    thread.wait = "a block barrier";
    note_arrival(me);
    if (block.arrived_count > 0 && block.exchange != exchange)
        fail("divergent-barrier", "threads of the block met in different block collectives", file,
             line);
    block.exchange = exchange;
    block.slots[me] = slot;
    ++block.arrived_count;
    if (!barrier_is_complete()) return wait_here();
    complete_barrier();
    if (block.meets_cluster) return leave_block();
    choose_warp_ahead();
    go_on();
}

void cluster_barrier(const char* file, int line) {
    block_exchange(nullptr, cluster.size > 1 ? meet_cluster : nullptr, file, line);
}

void warp_exchange(unsigned mask, void* slot, WarpExchange exchange, bool orders_memory,
                   const char* file, int line) {
    const int me = block.current;
    const int lane = me % warpSize;
    Warp& warp = block.warps[me / warpSize];
    Thread& thread = block.threads[me];
    thread.file = file;
    thread.line = line;
    thread.wait = "a warp collective";
    note_arrival(me);
    if ((mask >> lane & 1) == 0)
        fail("divergent-barrier", "a lane called a warp collective whose mask leaves it out", file,
             line);
    if (checking && (mask & warp.existing & warp.exited)) fail_for_returned_lane(me);
    Group* group = join_group(warp, mask, exchange, orders_memory, file, line);
    group->arrived |= 1u << lane;
    warp.slots[lane] = slot;
    if (!group_is_complete(warp, *group)) return wait_here();
    complete_group(me / warpSize, group);
    go_on();
}

int lane_index() { return block.current % warpSize; }

unsigned live_lanes() {
    const Warp& warp = block.warps[block.current / warpSize];
    return warp.existing & ~warp.exited;
}

void require_full_warps(bool of_block) {
    const bool full = of_block ? block.thread_count % warpSize == 0 && block.exited_count == 0
                               : live_lanes() == ~0u;
    if (full) return;
    fail("divergent-barrier",
         "a collective of whole warps ran with lanes missing; the block size must be a multiple of "
         "32 and no thread may return before it",
         "", 0);
}

CopyQueue& copy_queue() { return copy_queues[cluster.rank * max_threads + block.current]; }

void append_copy(const PendingCopy& copy) {
    CopyQueue& queue = copy_queue();
    if (queue.count == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 16 : 2 * queue.capacity;
        queue.copies = static_cast<PendingCopy*>(
            realloc(queue.copies, queue.capacity * sizeof *queue.copies));
    }
    queue.copies[queue.count++] = copy;
}

}  // namespace host

// Runs a grid: blocks one after another, the threads of a block as fibers.
//
// A thread runs until it waits or returns. A fiber whose thread returned takes the next unstarted
// thread in place, so a kernel without barriers is one plain loop on one stack.
#define HOST_DEFINE_SWITCH 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "block.h"
#include "copies.h"
#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas(1024) char dsv4_dynamic_shared[host::max_shared_bytes];

// The linker brackets the section that holds every `__shared__` variable.
extern "C" {
extern char __start_dsv4_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_dsv4_shared[] __attribute__((weak, visibility("hidden")));
}

namespace host {

Block block;
const Launch* launch;
Fault* fault;

namespace {

#ifdef DSV4_CHECK
constexpr bool checking = true;
#else
constexpr bool checking = false;
#endif
constexpr uint64_t canary = 0x5ca1ab1e0ddba11ull;

Export* exports;
Export::Call kernel;
const uint64_t* kernel_values;
void* main_stack_pointer;

Fiber fibers[max_threads];
Fiber* free_fibers[max_threads];
int fiber_count, free_count;

int ready[max_threads];  // ring of threads that can run
int ready_first, ready_count;
uint64_t random_state;
CopyQueue copy_queues[max_threads];

void push_ready(int thread) {
    ready[(ready_first + ready_count++) % max_threads] = thread;
}

int pop_ready() {
    if (launch->shuffle) {
        int* pick = &ready[(ready_first + random_number() % ready_count) % max_threads];
        int* head = &ready[ready_first];
        const int swapped = *pick;
        *pick = *head;
        *head = swapped;
    }
    const int thread = ready[ready_first];
    ready_first = (ready_first + 1) % max_threads;
    --ready_count;
    return thread;
}

void fiber_main();

Fiber* take_fiber() {
    if (free_count == 0) {
        Fiber& made = fibers[fiber_count];
        if (made.stack == nullptr) {
            void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) fail("deadlock", "no memory for a thread's stack", "", 0);
            made.stack = static_cast<char*>(memory);
            memcpy(made.stack, &canary, sizeof canary);
        }
        ++fiber_count;
        free_fibers[free_count++] = &made;
    }
    Fiber* fiber = free_fibers[--free_count];
    // Stacks at one page offset would fight over the same cache sets.
    const size_t stagger = 192 * ((fiber - fibers) % 16);
    fiber->stack_pointer = prepare_stack(fiber->stack + stack_bytes - stagger, fiber_main);
    return fiber;
}

void make_current(int thread) {
    block.current = thread;
    threadIdx = block.threads[thread].index;
}

// The address and frame of whoever called the function this stands in.
#define HOST_CALLER __builtin_return_address(0), *static_cast<void**>(__builtin_frame_address(0))
#ifdef DSV4_CHECK
#define note_arrival(thread) check_arrives(thread, HOST_CALLER)
#else
#define note_arrival(thread) ((void)0)
#endif

void describe_waiting(char* out, size_t size) {
    int used = 0;
    int shown = 0;
    for (int i = 0; i < block.thread_count && shown < 3; ++i) {
        const Thread& thread = block.threads[i];
        if (thread.exited || thread.file == nullptr) continue;
        const char* name = strrchr(thread.file, '/');
        used += snprintf(out + used, size - used, "%sthread (%u,%u,%u) at %s, %s:%d",
                         shown ? "; " : "", thread.index.x, thread.index.y, thread.index.z,
                         thread.wait, name ? name + 1 : thread.file, thread.line);
        if (used >= static_cast<int>(size)) return;
        ++shown;
    }
}

[[noreturn]] void fail_deadlock() {
    int waiting = 0;
    while (block.threads[waiting].exited) ++waiting;
    char text[400];
    int used = snprintf(text, sizeof text, "no thread of the block can go on: ");
    describe_waiting(text + used, sizeof text - used);
    make_current(waiting);
    fail("deadlock", text, block.threads[waiting].file, block.threads[waiting].line);
}

// Leaves the running thread suspended until somebody makes it ready.
void wait_here() {
    if (ready_count == 0) fail_deadlock();
    Fiber* mine = block.threads[block.current].fiber;
    const int next = pop_ready();
    Thread& thread = block.threads[next];
    if (next == block.current) return;
    if (thread.fiber == nullptr) thread.fiber = take_fiber();
    make_current(next);
    dsv4_switch_stack(&mine->stack_pointer, thread.fiber->stack_pointer);
}

void release(int thread) {
    block.threads[thread].file = nullptr;
    if (thread != block.current) push_ready(thread);
}

// In run mode the last to arrive goes on; a random order must be free to pick anybody.
void go_on() {
    if (!launch->shuffle) return;
    push_ready(block.current);
    wait_here();
}

bool barrier_is_complete() {
    return block.arrived_count > 0 && block.arrived_count + block.exited_count == block.thread_count;
}

// Check mode is stricter than sm_70: everybody must wait, and at one line.
void require_one_line(const int* threads, int count, const char* text) {
#ifdef DSV4_CHECK
    const int blamed = find_divergent(threads, count);
    if (blamed < 0) return;
    make_current(blamed);
    fail("divergent-barrier", text, block.threads[blamed].file, block.threads[blamed].line);
#endif
}

void require_whole_block() {
    int waiting[max_threads];
    int count = 0;
    const Thread* returned = nullptr;
    for (int i = 0; i < block.thread_count; ++i) {
        if (!block.threads[i].exited) waiting[count++] = i;
        else if (returned == nullptr) returned = &block.threads[i];
    }
    require_one_line(waiting, count, "threads of the block wait at different barriers");
    if (returned == nullptr) return;
    char text[200];
    snprintf(text, sizeof text,
             "%d threads wait at a barrier that thread (%u,%u,%u) and %d others will never reach: "
             "they returned",
             count, returned->index.x, returned->index.y, returned->index.z,
             block.exited_count - 1);
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

void complete_barrier() {
    if (checking) require_whole_block();
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

void thread_returned() {
    const int me = block.current;
    const int warp_index = me / warpSize;
    Warp& warp = block.warps[warp_index];
    block.threads[me].exited = true;
    ++block.exited_count;
    warp.exited |= 1u << (me % warpSize);
    uint64_t seen;
    memcpy(&seen, block.threads[me].fiber->stack, sizeof seen);
    if (seen != canary) fail("out-of-bounds", "the thread overflowed its 128 KiB stack", "", 0);
    // Since sm_70 a thread that returned no longer holds anybody back.
    for (int i = warp.group_count - 1; i >= 0; --i) {
        Group& group = warp.groups[i];
        if ((group.mask >> (me % warpSize) & 1) == 0) continue;
        if (checking) {
            const Thread& waiting = block.threads[warp_index * warpSize + __builtin_ctz(group.arrived)];
            make_current(warp_index * warpSize + __builtin_ctz(group.arrived));
            fail("deadlock", "a lane named in the mask of this collective has returned",
                 waiting.file, waiting.line);
        }
        if (group_is_complete(warp, group)) complete_group(warp_index, &group);
    }
    if (barrier_is_complete()) complete_barrier();
}

void fiber_main() {
    for (;;) {
        kernel(kernel_values);
        thread_returned();
        if (block.exited_count == block.thread_count) {
            void* unused;
            dsv4_switch_stack(&unused, main_stack_pointer);
        }
        if (ready_count == 0) fail_deadlock();
        Fiber* mine = block.threads[block.current].fiber;
        const int next = pop_ready();
        Thread& thread = block.threads[next];
        make_current(next);
        if (thread.fiber == nullptr) {
            thread.fiber = mine;
            continue;
        }
        free_fibers[free_count++] = mine;
        void* unused;
        dsv4_switch_stack(&unused, thread.fiber->stack_pointer);
    }
}

void begin_block(unsigned number) {
    blockIdx = {number % gridDim.x, number / gridDim.x % gridDim.y,
                number / gridDim.x / gridDim.y};
    block.exited_count = block.arrived_count = 0;
    block.exchange = nullptr;
    for (int i = 0; i < block.thread_count; ++i) {
        Thread& thread = block.threads[i];
        thread.fiber = nullptr;
        thread.exited = false;
        thread.file = nullptr;
        copy_queues[i].count = 0;
        copy_queues[i].group = 0;
        ready[i] = i;
    }
    for (int i = 0; i < block.warp_count; ++i) {
        block.warps[i].exited = 0;
        block.warps[i].group_count = 0;
    }
    ready_first = 0;
    ready_count = block.thread_count;
    free_count = 0;
    for (int i = fiber_count - 1; i >= 0; --i) free_fibers[free_count++] = &fibers[i];
    if (launch->shuffle || checking) {
        const StaticShared statics = static_shared();
        if (statics.first != nullptr) memset(statics.first, 0xff, statics.end - statics.first);
        memset(dsv4_dynamic_shared, 0xff, launch->shared_bytes);
    }
#ifdef DSV4_CHECK
    check_block_begins(number);
#endif
}

void run_block(unsigned number) {
    begin_block(number);
    const int first = pop_ready();
    block.threads[first].fiber = take_fiber();
    make_current(first);
    dsv4_switch_stack(&main_stack_pointer, block.threads[first].fiber->stack_pointer);
}

void begin_launch() {
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
    random_state = launch->seed * 0x9e3779b97f4a7c15ull + 1;
}

}  // namespace

uint64_t random_number() {
    // splitmix64
    uint64_t z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

StaticShared static_shared() { return {__start_dsv4_shared, __stop_dsv4_shared}; }

Export::Export(const char* name, Call call, const char* signature)
    : name(name), call(call), signature(signature), next(exports) {
    exports = this;
}

int lane_index() { return block.current % warpSize; }
unsigned live_lanes() {
    const Warp& warp = block.warps[block.current / warpSize];
    return warp.existing & ~warp.exited;
}

void require_full_warps(bool of_block) {
    const bool full = of_block ? block.thread_count % warpSize == 0 && block.exited_count == 0
                               : live_lanes() == ~0u;
    if (!full)
        fail("divergent-barrier",
             "a collective of whole warps ran with lanes missing; the block size must be a multiple "
             "of 32 and no thread may return before it",
             "", 0);
}

CopyQueue& copy_queue() { return copy_queues[block.current]; }

void append_copy(const PendingCopy& copy) {
    CopyQueue& queue = copy_queue();
    if (queue.count == queue.capacity) {
        queue.capacity = queue.capacity == 0 ? 16 : 2 * queue.capacity;
        queue.copies = static_cast<PendingCopy*>(
            realloc(queue.copies, queue.capacity * sizeof *queue.copies));
    }
    queue.copies[queue.count++] = copy;
}

void abandon_block() {
    void* unused;
    dsv4_switch_stack(&unused, main_stack_pointer);
    __builtin_unreachable();
}

void fail(const char* kind, const char* text, const char* file, int line) {
    snprintf(fault->kind, sizeof fault->kind, "%s", kind);
    snprintf(fault->text, sizeof fault->text, "%s", text);
    snprintf(fault->file, sizeof fault->file, "%s", file);
    fault->line = line;
    const uint3 who[2] = {blockIdx, threadIdx};
    memcpy(fault->block, &who[0], sizeof fault->block);
    memcpy(fault->thread, &who[1], sizeof fault->thread);
#ifdef DSV4_CHECK
    check_locates_fault(HOST_CALLER);
#endif
    abandon_block();
}

void block_exchange(void* slot, BlockExchange exchange, const char* file, int line) {
    const int me = block.current;
    Thread& thread = block.threads[me];
    thread.file = file;
    thread.line = line;
    thread.wait = "__syncthreads";
    note_arrival(me);
    if (block.arrived_count > 0 && block.exchange != exchange)
        fail("divergent-barrier", "threads of the block met in different block collectives", file,
             line);
    block.exchange = exchange;
    block.slots[me] = slot;
    ++block.arrived_count;
    if (!barrier_is_complete()) return wait_here();
    complete_barrier();
    go_on();
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
    Group* group = nullptr;
    for (int i = 0; i < warp.group_count; ++i) {
        if (warp.groups[i].mask == mask) {
            group = &warp.groups[i];
        } else if (warp.groups[i].mask & mask) {
            fail("divergent-barrier", "lanes of one warp met in collectives with different masks",
                 file, line);
        }
    }
    if (group == nullptr) {
        group = &warp.groups[warp.group_count++];
        *group = {mask, 0, exchange, orders_memory};
    }
    if (group->exchange != exchange)
        fail("divergent-barrier", "lanes of one warp met in different collectives", file, line);
    group->arrived |= 1u << lane;
    warp.slots[lane] = slot;
    if (checking && (mask & warp.existing & warp.exited))
        fail("deadlock", "a lane named in the mask of this collective has returned", file, line);
    if (!group_is_complete(warp, *group)) return wait_here();
    complete_group(me / warpSize, group);
    go_on();
}

#ifndef DSV4_CHECK
void note_atomic(const void*, size_t) {}
void note_fence() {}
#endif

}  // namespace host

extern "C" {

__attribute__((visibility("default"))) const char* dsv4_kernel_name(int index) {
    host::Export* entry = host::exports;
    while (entry != nullptr && index-- > 0) entry = entry->next;
    return entry == nullptr ? nullptr : entry->name;
}

__attribute__((visibility("default"))) const char* dsv4_kernel_signature(int index) {
    host::Export* entry = host::exports;
    while (entry != nullptr && index-- > 0) entry = entry->next;
    return entry == nullptr ? nullptr : entry->signature;
}

__attribute__((visibility("default"))) uint64_t dsv4_static_shared_bytes() {
    const host::StaticShared statics = host::static_shared();
    return static_cast<uint64_t>(statics.end - statics.first);
}

// Returns 1 when the kernel failed; the fault then says how.
__attribute__((visibility("default"))) int dsv4_launch(int index, const uint64_t* values,
                                                       const host::Launch* launch,
                                                       host::Fault* fault) {
    using namespace host;
    Export* entry = exports;
    while (index-- > 0) entry = entry->next;
    kernel = entry->call;
    kernel_values = values;
    host::launch = launch;
    host::fault = fault;
    begin_launch();
    const uint64_t blocks = static_cast<uint64_t>(gridDim.x) * gridDim.y * gridDim.z;
    unsigned* order = nullptr;
    if (launch->shuffle) {
        order = static_cast<unsigned*>(malloc(blocks * sizeof *order));
        for (uint64_t i = 0; i < blocks; ++i) {
            const uint64_t other = random_number() % (i + 1);
            order[i] = order[other];
            order[other] = static_cast<unsigned>(i);
        }
    }
#ifdef DSV4_CHECK
    check_launch_begins();
#endif
    while (fault->kind[0] == 0) {
        const uint64_t number = __atomic_fetch_add(launch->next_block, 1, __ATOMIC_RELAXED);
        if (number >= blocks) break;
        run_block(order != nullptr ? order[number] : static_cast<unsigned>(number));
    }
#ifdef DSV4_CHECK
    check_launch_ends();
#endif
    free(order);
    return fault->kind[0] != 0;
}
}

// Runs the threads of a block as fibers.
//
// A thread runs until it waits or returns. A fiber whose thread returned takes the next unstarted
// thread in place, so a kernel without barriers is one plain loop on one stack.
#define HOST_DEFINE_SWITCH 1
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "block.h"
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

constexpr uint64_t canary = 0x5ca1ab1e0ddba11ull;

Export::Call kernel;
const uint64_t* kernel_values;
void* main_stack_pointer;

Fiber fibers[max_cluster * max_threads];
Fiber* free_fibers[max_cluster * max_threads];
int fiber_count, free_count;

int ready[max_threads];  // ring of threads that can run
int ready_first, ready_count;
uint64_t random_state;
// Of a shuffled block: one warp goes on as long as it can, then another. So some are far ahead of
// others, which random picks alone keep together.
bool runs_ahead;
int warp_ahead;

int& ready_at(int place) { return ready[(ready_first + place) % max_threads]; }

// The place of the thread that goes on.
int chosen_place() {
    if (!launch->shuffle) return 0;
    // What was released last is most often of that warp.
    for (int place = runs_ahead ? ready_count - 1 : -1; place >= 0; --place)
        if (ready_at(place) / warpSize == warp_ahead) return place;
    const int place = random_number() % ready_count;
    warp_ahead = ready_at(place) / warpSize;
    return place;
}

int pop_ready() {
    int& pick = ready_at(chosen_place());
    const int thread = pick;
    pick = ready_at(0);
    ready_first = (ready_first + 1) % max_threads;
    --ready_count;
    return thread;
}

void push_ready(int thread) { ready[(ready_first + ready_count++) % max_threads] = thread; }

void fiber_main();

Fiber* take_fiber() {
    if (free_count == 0) {
        Fiber& made = fibers[fiber_count];
        void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            fail("out-of-bounds", "no memory is left for a thread's stack", "", 0);
        made.stack = static_cast<char*>(memory);
        memcpy(made.stack, &canary, sizeof canary);
        ++fiber_count;
        free_fibers[free_count++] = &made;
    }
    Fiber* fiber = free_fibers[--free_count];
    // Stacks at one page offset would fight over the same cache sets.
    const size_t stagger = 192 * ((fiber - fibers) % 16);
    fiber->stack_pointer = prepare_stack(fiber->stack + stack_bytes - stagger, fiber_main);
    return fiber;
}

[[noreturn]] void fail_deadlock() {
    char text[sizeof Fault::text];
    int used = snprintf(text, sizeof text, "no thread of the block can go on");
    int waiting = -1, shown = 0;
    for (int i = 0; i < block.thread_count && shown < 3; ++i) {
        const Thread& thread = block.threads[i];
        if (thread.exited || used >= static_cast<int>(sizeof text)) continue;
        if (waiting >= 0 && thread.line == block.threads[waiting].line) continue;
        if (waiting < 0) waiting = i;
        const char* name = strrchr(thread.file, '/');
        used += snprintf(text + used, sizeof text - used, "%s thread (%u,%u,%u) waits at %s, %s:%d",
                         shown == 0 ? ":" : ";", thread.index.x, thread.index.y, thread.index.z,
                         thread.wait, name != nullptr ? name + 1 : thread.file, thread.line);
        ++shown;
    }
    make_current(waiting);
    fail("deadlock", text, block.threads[waiting].file, block.threads[waiting].line);
}

void switch_to_main() {
    void* unused;
    dsv4_switch_stack(&unused, main_stack_pointer);
}

void thread_returned() {
    const int me = block.current;
    uint64_t seen;
    memcpy(&seen, block.threads[me].fiber->stack, sizeof seen);
    if (seen != canary) {
        memcpy(block.threads[me].fiber->stack, &canary, sizeof canary);
        fail("out-of-bounds", "the thread overflowed its stack of 128 KiB", "", 0);
    }
    block.threads[me].exited = true;
    ++block.exited_count;
    collectives_see_return(me);
#ifdef DSV4_CHECK
    if (block.exited_count == block.thread_count) check_block_ends();
#endif
}

void fiber_main() {
    for (;;) {
        kernel(kernel_values);
        thread_returned();
        Fiber* mine = block.threads[block.current].fiber;
        if (block.exited_count == block.thread_count || block.meets_cluster) {
            free_fibers[free_count++] = mine;
            switch_to_main();
        }
        if (ready_count == 0) fail_deadlock();
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

}  // namespace

StaticShared static_shared() { return {__start_dsv4_shared, __stop_dsv4_shared}; }

void seed_random(uint64_t seed) { random_state = seed * 0x9e3779b97f4a7c15ull + 1; }

uint64_t random_number() {
    // splitmix64
    uint64_t z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void make_current(int thread) {
    block.current = thread;
    threadIdx = block.threads[thread].index;
}

void release(int thread) {
    block.threads[thread].file = nullptr;
    if (thread != block.current) push_ready(thread);
}

void wait_here() {
    if (ready_count == 0) fail_deadlock();
    Fiber* mine = block.threads[block.current].fiber;
    const int next = pop_ready();
    if (next == block.current) return;
    Thread& thread = block.threads[next];
    if (thread.fiber == nullptr) thread.fiber = take_fiber();
    make_current(next);
    dsv4_switch_stack(&mine->stack_pointer, thread.fiber->stack_pointer);
}

void choose_warp_ahead() {
    if (launch->shuffle) warp_ahead = random_number() % block.warp_count;
}

void go_on() {
    if (!launch->shuffle) return;
    push_ready(block.current);
    wait_here();
}

void leave_block() {
    dsv4_switch_stack(&block.threads[block.current].fiber->stack_pointer, main_stack_pointer);
}

void begin_kernel(Export::Call call, const uint64_t* values) {
    kernel = call;
    kernel_values = values;
}

// Also those of a block that was given up.
void take_back_fibers() {
    free_count = 0;
    for (int i = fiber_count - 1; i >= 0; --i) free_fibers[free_count++] = &fibers[i];
}

void begin_block() {
    for (int i = 0; i < block.thread_count; ++i) {
        block.threads[i].fiber = nullptr;
        block.threads[i].exited = false;
        block.threads[i].waited = false;
    }
    block.exited_count = 0;
    runs_ahead = launch->shuffle && random_number() % 2 == 0;
    begin_collectives();
    if (launch->shuffle || checking) {
        // Stale values of the block before would hide a missing write.
        const StaticShared statics = static_shared();
        if (statics.first != nullptr) memset(statics.first, 0xff, statics.end - statics.first);
        memset(dsv4_dynamic_shared, 0xff, launch->shared_bytes);
    }
}

void run_block(unsigned number) {
    blockIdx = {number % gridDim.x, number / gridDim.x % gridDim.y, number / gridDim.x / gridDim.y};
    ready_first = ready_count = 0;
    for (int i = 0; i < block.thread_count; ++i) {
        block.threads[i].file = nullptr;
        if (!block.threads[i].exited) push_ready(i);
    }
    begin_turn();
#ifdef DSV4_CHECK
    check_turn_begins(number);
#endif
    const int first = pop_ready();
    Thread& thread = block.threads[first];
    make_current(first);
    if (thread.fiber == nullptr) thread.fiber = take_fiber();
    dsv4_switch_stack(&main_stack_pointer, thread.fiber->stack_pointer);
}

void fail(const char* kind, const char* text, const char* file, int line) {
    fail_at(kind, text, file, line, HOST_CALLER);
}

// Leaves every fiber of the block where it stands; the next block starts them afresh.
void fail_at(const char* kind, const char* text, const char* file, int line, void* pc,
             void* frame) {
    snprintf(fault->kind, sizeof fault->kind, "%s", kind);
    snprintf(fault->text, sizeof fault->text, "%s", text);
    snprintf(fault->file, sizeof fault->file, "%s", file);
    fault->line = line;
#ifdef DSV4_CHECK
    check_locates_fault(pc, frame);
#endif
    const uint3 who[2] = {blockIdx, threadIdx};
    memcpy(fault->block, &who[0], sizeof fault->block);
    memcpy(fault->thread, &who[1], sizeof fault->thread);
    switch_to_main();
    __builtin_unreachable();
}

}  // namespace host

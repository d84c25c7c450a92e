// The state of the one block a library copy is running, and the parts of the runtime that share it:
// scheduler.cpp (who runs), collectives.cpp (who waits for whom), cluster.cpp (whose turn it is among
// the blocks of a cluster), launch.cpp (the grid), and in check mode the checker.
#pragma once
#include "copies.h"
#include "runtime.h"

namespace host {

constexpr size_t stack_bytes = 128 * 1024;
constexpr int max_groups = warpSize;
constexpr int chain_length = 12;

#ifdef DSV4_CHECK
constexpr bool checking = true;
#else
constexpr bool checking = false;
#endif

struct Fiber {
    void* stack_pointer;
    char* stack;  // lowest byte
};

struct Thread {
    uint3 index;
    Fiber* fiber;  // null: not started yet
    bool exited;
    const char* file;  // where it waits, null while it runs
    int line;
    const char* wait;  // what it waits for, in words
    bool waited;       // it has called wait_for_previous
};

// Lanes gathering for one collective. Several can be pending in a warp, one for each mask.
struct Group {
    unsigned mask;
    unsigned arrived;
    WarpExchange exchange;
    bool orders_memory;
};

struct Warp {
    unsigned existing;  // lanes that this block shape has
    unsigned exited;
    int group_count;
    Group groups[max_groups];
    void* slots[warpSize];
};

struct Block {
    int thread_count, warp_count;
    int exited_count, arrived_count;
    BlockExchange exchange;
    void* slots[max_threads];
    Thread threads[max_threads];
    Warp warps[max_warps];
    int current;         // linear index of the running thread
    bool meets_cluster;  // all its live threads wait for the cluster's other blocks
};

// One row of the library's line table: from this offset on, code belongs to this line.
struct LineRow {
    uint64_t offset;
    uint32_t file;  // a number of Python's choosing
    uint32_t line;  // 0: no line
};

struct Frame {
    uint32_t file, line;
};

// Source lines from an access outwards over its callers; filled in check mode.
struct Chain {
    int count;
    Frame frames[chain_length];
};

// What Python reads after a launch that failed; kind is empty when it did not.
struct Fault {
    char kind[32];
    char text[512];
    char file[512];  // of the collective, when the fault was met in one
    int line;
    unsigned block[3], thread[3];
    uint64_t code_offset;  // of a processor fault, in the library; 0: none
    Chain here;            // check mode: the failing access
    Chain other;           // check mode: the other party of a race or a divergence
};

// The bytes of one array argument.
struct Extent {
    char* first;
    uint64_t size_bytes;
    uint32_t item_bytes;
    uint32_t writable;
    int32_t argument;
    uint32_t steady;  // nothing that may still run writes it
};

struct Launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned shuffle;    // random order of blocks and threads
    unsigned dependent;  // the kernel before may still run until wait_for_previous
    unsigned passes_on;  // let_next_start stands behind wait_for_previous
    unsigned cluster;    // blocks of a cluster, neighbours along x
    uint64_t seed;
    uint64_t* next_block;  // shared by all workers
    const Extent* extents;
    uint32_t extent_count;
    uint32_t line_count;
    const LineRow* lines;
};

// The blocks of a cluster take turns: each runs up to the next cluster barrier.
struct Cluster {
    int size, rank;  // blocks; the running one
    int round;       // cluster barriers that all have passed
};

extern Block block;
extern Cluster cluster;
extern const Launch* launch;
extern Fault* fault;

struct StaticShared {
    char *first, *end;  // both null when the file has none
};
StaticShared static_shared();

// Shared memory while its block waits for a turn.
struct Image {
    char *statics, *dynamic;
};

// scheduler.cpp
void seed_random(uint64_t seed);
uint64_t random_number();
void make_current(int thread);
void release(int thread);  // it may go on
void wait_here();          // suspends the running thread until it is released
void choose_warp_ahead();  // behind a barrier: which one a shuffled block lets go first
void go_on();              // the last to arrive: goes on, or lets a random order decide
void leave_block();        // suspends the running thread; whoever runs blocks goes on
void begin_kernel(Export::Call kernel, const uint64_t* values);
void begin_block();
void run_block(unsigned number);  // until its threads have returned or wait for the cluster
void take_back_fibers();

// cluster.cpp
void begin_clusters();              // of a launch
void run_cluster(unsigned number);  // of one block, too
bool others_have_returned();        // of the cluster
Image image_of(int rank);           // meaningful in clusters of several

// fail, told at which code and frame.
[[noreturn]] void fail_at(const char* kind, const char* text, const char* file, int line, void* pc,
                          void* frame);

// signals.cpp
void watch_signals();

// collectives.cpp
void begin_collectives();
void begin_turn();
void collectives_see_return(int thread);

#ifdef DSV4_CHECK
// checker.cpp
void check_launch_begins();
void check_launch_ends();
void check_cluster_begins();
void check_turn_begins(unsigned number);
void check_block_ends();
void check_block_synced();
void check_warp_synced(int warp, unsigned mask);

// A thread waits at a collective that was called at pc.
void check_arrives(int thread, void* pc, void* frame);

void note_entered();

// A letter goes to a place of block `rank` once, and not before that block has done with it: it need
// not tell when it has read it.
void check_letter(const char* address, size_t size, int rank, const char* file, int line);

// The thread to blame when these wait at different lines, else -1; fills the fault's chains.
int find_divergent(const int* threads, int count);

// Called by fail: fills the fault's chain unless that is done, and may put an earlier cause first.
void check_locates_fault(void* pc, void* frame);
#endif

// The return address and frame of whoever called the function this stands in.
#define HOST_CALLER __builtin_return_address(0), *static_cast<void**>(__builtin_frame_address(0))

}  // namespace host

// What the parts of the checker share: order.cpp (what happens before what), shadow.cpp (memory of
// accesses), sites.cpp (source lines), checker.cpp (the rules), receivers.cpp (the compiler's calls).
#pragma once
#include "block.h"

namespace host {

// One access that a cell remembers.
struct Access {
    uint32_t phase;  // counts block barriers over the whole launch; 0: no access
    uint32_t clock;  // of the thread, inside its warp and phase
    uint32_t site;
    uint16_t thread;
    uint8_t atomic;
    uint8_t on_its_way;  // a copy that its thread has not waited for
};

// order.cpp ---------------------------------------------------------------------------------
void forget_order();
void begin_cluster_order();
void begin_turn_order(uint32_t block_number);
void begin_phase();
void join_lanes(int warp, unsigned mask);

// The mark of an access by the running thread, now.
Access access_now(uint32_t site, bool atomic);

// True when nothing that the running thread does from now on can overlap `earlier`.
bool ordered_before_me(const Access& earlier, bool shared);

// True when the access is of the running cluster; shared memory of older ones counts as empty.
bool of_this_cluster(const Access& access);
uint32_t block_number_of(const Access& access);

// Whether block `rank` of the running cluster had done with what it accessed when it entered: a
// __syncthreads lay between.
void note_entered();
bool before_entry(const Access& access, int rank);

// Lets blocks be ordered by a fence and an atomic on the same address.
void order_by_fence();
void order_by_atomic(const void* address);

// shadow.cpp --------------------------------------------------------------------------------
// reads[0] and reads[1] are of one warp, reads[2] of another: whoever writes next without order
// conflicts with at least one of them.
struct Cell {
    Access write;
    Access reads[3];
};

struct Region {
    char *first, *end;
    bool shared;
    uint32_t cell_bytes;  // a power of two; cells split when a smaller access comes
    Cell* cells;          // null where nothing may be written
};

void add_region(char* first, char* end, bool shared, uint32_t cell_bytes, bool writable);
Region* region_of(const char* address);
void split_cells(Region& region, size_t offset, size_t size);
void remember_read(Cell& cell, const Access& mine, bool shared);
void forget_regions();

// sites.cpp ---------------------------------------------------------------------------------
// Says which addresses are code of this library.
void begin_sites(char* image_first, char* image_end);

// A number for the chain of calls that ends at pc; the same chain gets the same number.
uint32_t intern_site(void* pc, void* frame);
Chain chain_of(uint32_t site);
bool same_lines(uint32_t site, uint32_t other);
void forget_sites();

// checker.cpp -------------------------------------------------------------------------------
void visit(void* address, size_t size, bool write, bool atomic, void* pc, void* frame);

}  // namespace host

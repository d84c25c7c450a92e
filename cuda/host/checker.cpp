// Watches every memory access of a kernel in check mode.
//
// The kernel is compiled with the thread sanitizer's instrumentation, but the receivers of its calls
// are ours. Global arguments and shared memory have a shadow: cells that remember the last write and
// up to three reads. Two accesses of one cell by different threads, one of them a write, race unless
//   - a __syncthreads lies between (their phase differs),
//   - a __syncwarp lies between (vector clocks inside a warp; shuffles and votes order no memory),
//   - both are atomic, or
//   - they are of different blocks and the later block met the earlier one's fence and atomic.
#include "checker.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace host {
namespace {

struct Access {
    uint32_t phase;  // 0: none
    uint32_t clock;
    uint32_t site;
    uint16_t thread;
    uint16_t atomic;
};

// reads[0] and reads[1] are of one warp, reads[2] of another: whoever writes next without order
// conflicts with at least one of them.
struct Cell {
    Access write;
    Access reads[3];
};

struct Region {
    char *first, *end;
    bool shared;
    uint32_t cell_bytes;
    Cell* cells;  // null where nothing may be written
};

// A block's first phase, to name the block of an old access.
struct BlockPhase {
    uint32_t phase, number;
};

// An atomic by a block that had fenced: whoever updates the same address later is ordered after it.
struct Release {
    const void* address;
    uint32_t block;
};

template <class T>
struct List {
    T* items = nullptr;
    size_t count = 0, capacity = 0;
    void push(const T& item) {
        if (count == capacity) {
            capacity = capacity == 0 ? 64 : 2 * capacity;
            items = static_cast<T*>(realloc(items, capacity * sizeof(T)));
        }
        items[count++] = item;
    }
    void clear() {
        free(items);
        items = nullptr;
        count = capacity = 0;
    }
};

bool watching;
char *image_first, *image_end;
List<Region> regions;
List<BlockPhase> blocks;
List<Release> releases;
List<const void*> acquired;
uint32_t phase, block_phase;
uint32_t block_number;
bool block_fenced;
uint32_t clocks[max_threads][warpSize];
uint32_t waiting_sites[max_threads];

int find_image(dl_phdr_info* info, size_t, void*) {
    char* const here = reinterpret_cast<char*>(&watching);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        char* first = reinterpret_cast<char*>(info->dlpi_addr + segment.p_vaddr);
        if (segment.p_type != PT_LOAD || here < first || here >= first + segment.p_memsz) continue;
        image_first = reinterpret_cast<char*>(info->dlpi_addr);
        for (int j = 0; j < info->dlpi_phnum; ++j) {
            const auto& other = info->dlpi_phdr[j];
            char* end = reinterpret_cast<char*>(info->dlpi_addr + other.p_vaddr + other.p_memsz);
            if (other.p_type == PT_LOAD && end > image_end) image_end = end;
        }
        return 1;
    }
    return 0;
}

void add_region(char* first, char* end, bool shared, uint32_t cell_bytes, bool writable) {
    if (first == nullptr || first == end) return;
    // Overlapping arguments share one shadow.
    for (size_t i = 0; i < regions.count; ++i) {
        Region& old = regions.items[i];
        if (first >= old.end || end <= old.first) continue;
        first = first < old.first ? first : old.first;
        end = end > old.end ? end : old.end;
        cell_bytes = 1;
        writable |= old.cells != nullptr;
        free(old.cells);
        old = regions.items[--regions.count];
        return add_region(first, end, shared, cell_bytes, writable);
    }
    Region region{first, end, shared, cell_bytes, nullptr};
    if (writable) {
        const size_t count = (end - first + cell_bytes - 1) / cell_bytes;
        region.cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
    }
    regions.push(region);
}

// Splits cells so that an access of part of one gets its own.
void refine(Region& region, uint32_t cell_bytes) {
    const uint32_t parts = region.cell_bytes / cell_bytes;
    const size_t count = (region.end - region.first + cell_bytes - 1) / cell_bytes;
    Cell* cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
    for (size_t i = 0; i < count; ++i) cells[i] = region.cells[i / parts];
    free(region.cells);
    region.cells = cells;
    region.cell_bytes = cell_bytes;
}

uint32_t block_of(uint32_t phase) {
    size_t low = 0, high = blocks.count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        (blocks.items[middle].phase <= phase ? low : high) = middle;
    }
    return blocks.items[low].number;
}

bool released_to_me(uint32_t other_block) {
    for (size_t i = 0; i < releases.count; ++i) {
        if (releases.items[i].block != other_block) continue;
        for (size_t j = 0; j < acquired.count; ++j)
            if (acquired.items[j] == releases.items[i].address) return true;
    }
    return false;
}

bool ordered_before_me(const Access& earlier, bool shared) {
    const int me = block.current;
    if (earlier.phase == phase) {
        if (earlier.thread == me) return true;
        if (earlier.thread / warpSize != me / warpSize) return false;
        return clocks[me][earlier.thread % warpSize] >= earlier.clock;
    }
    if (earlier.phase >= block_phase || earlier.phase == 0 || shared) return true;
    return released_to_me(block_of(earlier.phase));
}

void describe_place(char* out, size_t size, const char* address) {
    const StaticShared statics = static_shared();
    if (address >= statics.first && address < statics.end) {
        snprintf(out, size, "byte %td of static shared memory", address - statics.first);
        return;
    }
    if (address >= dsv4_dynamic_shared && address < dsv4_dynamic_shared + max_shared_bytes) {
        snprintf(out, size, "byte %td of %u bytes of dynamic shared memory",
                 address - dsv4_dynamic_shared, launch->shared_bytes);
        return;
    }
    const Extent* nearest = nullptr;
    uint64_t nearest_distance = 1 << 20;
    for (uint32_t i = 0; i < launch->extent_count; ++i) {
        const Extent& extent = launch->extents[i];
        const char* end = extent.first + extent.size_bytes;
        const uint64_t distance = address < extent.first ? extent.first - address
                                  : address >= end       ? address - end + 1
                                                         : 0;
        if (distance >= nearest_distance) continue;
        nearest = &extent;
        nearest_distance = distance;
    }
    if (nearest == nullptr) {
        snprintf(out, size, "address %p, which belongs to no argument", address);
    } else {
        snprintf(out, size, "byte %td of argument %d, which spans %llu bytes",
                 address - nearest->first, nearest->argument,
                 static_cast<unsigned long long>(nearest->size_bytes));
    }
}

[[noreturn]] void report(const char* kind, const char* address, uint32_t size, const char* verb,
                         uint32_t site, const char* tail) {
    char place[160], text[sizeof Fault::text];
    describe_place(place, sizeof place, address);
    snprintf(text, sizeof text, "%s of %u byte%s at %s%s", verb, size, size == 1 ? "" : "s", place,
             tail);
    fault->here = chain_of(site);
    fail(kind, text, "", 0);
}

[[noreturn]] void report_race(const Access& earlier, const char* earlier_verb, const char* address,
                              uint32_t size, const char* verb, uint32_t site) {
    const uint3 who = block.threads[earlier.thread].index;
    const bool same_block = earlier.phase >= block_phase;
    const uint32_t number = same_block ? block_number : block_of(earlier.phase);
    const char* missing = !same_block ? "nothing orders the two blocks"
                          : earlier.thread / warpSize == block.current / warpSize
                              ? "no __syncwarp or __syncthreads in between"
                              : "no __syncthreads in between";
    char tail[200];
    snprintf(tail, sizeof tail, " races with a %s by thread (%u,%u,%u) of block (%u,%u,%u): %s",
             earlier_verb, who.x, who.y, who.z, number % gridDim.x, number / gridDim.x % gridDim.y,
             number / gridDim.x / gridDim.y, missing);
    fault->other = chain_of(earlier.site);
    report("race", address, size, verb, site, tail);
}

void remember_read(Cell& cell, const Access& mine, bool shared) {
    Access& first = cell.reads[0];
    if (ordered_before_me(first, shared)) {
        first = mine;
        return;
    }
    const bool same_warp =
        first.phase == phase && first.thread / warpSize == mine.thread / warpSize;
    Access& other = cell.reads[same_warp ? 1 : 2];
    if (ordered_before_me(other, shared)) other = mine;
}

void visit_cell(Region& region, Cell& cell, const Access& mine, bool write, const char* address,
                uint32_t size, const char* verb) {
    if (region.shared && cell.write.phase < block_phase && (!write || mine.atomic))
        report("uninitialised-shared", address, size, verb, mine.site,
               ", which nobody of this block has written");
    if (!ordered_before_me(cell.write, region.shared) && !(cell.write.atomic && mine.atomic))
        report_race(cell.write, cell.write.atomic ? "atomic update" : "write", address, size, verb,
                    mine.site);
    if (!write) return remember_read(cell, mine, region.shared);
    for (Access& read : cell.reads) {
        if (!ordered_before_me(read, region.shared))
            report_race(read, "read", address, size, verb, mine.site);
        read.phase = 0;
    }
    cell.write = mine;
}

Region* region_of(const char* address) {
    for (size_t i = 0; i < regions.count; ++i) {
        Region& region = regions.items[i];
        if (address >= region.first && address < region.end) return &region;
    }
    return nullptr;
}

// Global memory: the bytes must lie inside one argument, for a write inside one that is not const.
void require_permission(char* address, uint32_t size, bool write, const char* verb, uint32_t site) {
    bool readable = false;
    for (uint32_t i = 0; i < launch->extent_count; ++i) {
        const Extent& extent = launch->extents[i];
        if (address < extent.first || address + size > extent.first + extent.size_bytes) continue;
        if (!write || extent.writable) return;
        readable = true;
    }
    if (readable)
        report("write-to-const", address, size, verb, site, " and is passed as a const pointer");
    report("out-of-bounds", address, size, verb, site, "");
}

void visit(char* address, uint32_t size, bool write, bool atomic, void* pc, void* frame) {
    if (!watching) return;
    const char* stack = block.threads[block.current].fiber->stack;
    if (address >= stack && address < stack + stack_bytes) return;
    Region* region = region_of(address);
    const bool in_image = address >= image_first && address < image_end;
    const bool in_dynamic = address >= dsv4_dynamic_shared &&
                            address < dsv4_dynamic_shared + max_shared_bytes;
    if (region == nullptr && in_image && !in_dynamic) return;  // constants and device globals
    const uint32_t site = intern_site(pc, frame);
    const char* verb = atomic ? "atomic update" : write ? "write" : "read";
    if (region == nullptr || (region->shared && address + size > region->end))
        report("out-of-bounds", address, size, verb, site, "");
    if (!region->shared) require_permission(address, size, write, verb, site);
    if (region->cells == nullptr) return;

    const size_t offset = address - region->first;
    while ((offset | size) % region->cell_bytes != 0) refine(*region, region->cell_bytes / 2);
    const int me = block.current;
    const Access mine{phase, clocks[me][me % warpSize], site, static_cast<uint16_t>(me), atomic};
    for (size_t at = offset; at < offset + size; at += region->cell_bytes)
        visit_cell(*region, region->cells[at / region->cell_bytes], mine, write, address, size,
                   verb);
}

void begin_phase() {
    ++phase;
    memset(clocks, 0, sizeof clocks[0] * block.thread_count);
    for (int i = 0; i < block.thread_count; ++i) clocks[i][i % warpSize] = 1;
}

}  // namespace

void check_launch_begins() {
    dl_iterate_phdr(find_image, nullptr);
    read_sites(image_first, image_end);
    phase = 0;
    const StaticShared statics = static_shared();
    add_region(statics.first, statics.end, true, 4, true);
    add_region(dsv4_dynamic_shared, dsv4_dynamic_shared + launch->shared_bytes, true, 4, true);
    for (uint32_t i = 0; i < launch->extent_count; ++i) {
        const Extent& extent = launch->extents[i];
        uint32_t cell_bytes = 1;
        while (cell_bytes < 4 && extent.item_bytes % (2 * cell_bytes) == 0) cell_bytes *= 2;
        add_region(extent.first, extent.first + extent.size_bytes, false, cell_bytes,
                   extent.writable);
    }
    watching = true;
}

void check_launch_ends() {
    watching = false;
    for (size_t i = 0; i < regions.count; ++i) free(regions.items[i].cells);
    regions.clear();
    blocks.clear();
    releases.clear();
    acquired.clear();
    forget_sites();
}

void check_block_begins(unsigned number) {
    begin_phase();
    block_phase = phase;
    block_number = number;
    block_fenced = false;
    acquired.count = 0;
    blocks.push({phase, number});
}

void check_block_synced() { begin_phase(); }

void check_warp_synced(int warp, unsigned mask) {
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

void check_arrives(int thread, void* pc, void* frame) { waiting_sites[thread] = intern_site(pc, frame); }

int find_divergent(const int* threads, int count) {
    const int first = threads[0];
    int others = 0, other = -1;
    for (int i = 0; i < count; ++i) {
        if (same_lines(waiting_sites[threads[i]], waiting_sites[first])) continue;
        other = threads[i];
        ++others;
    }
    if (other < 0) return -1;
    // Blame the smaller party; the conditional barrier is usually its.
    const int blamed = others <= count / 2 ? other : first;
    fault->here = chain_of(waiting_sites[blamed]);
    fault->other = chain_of(waiting_sites[blamed == first ? other : first]);
    return blamed;
}

void check_locates_fault(void* pc, void* frame) {
    if (fault->here.count > 0) return;
    const int me = block.current;
    fault->here = chain_of(block.threads[me].file != nullptr ? waiting_sites[me]
                                                             : intern_site(pc, frame));
}

void note_atomic(const void* address, size_t size) {
    visit(static_cast<char*>(const_cast<void*>(address)), static_cast<uint32_t>(size), true, true,
          __builtin_return_address(0), *static_cast<void**>(__builtin_frame_address(0)));
    if (block_fenced) releases.push({address, block_number});
    for (size_t i = 0; i < acquired.count; ++i)
        if (acquired.items[i] == address) return;
    acquired.push(address);
}

void note_fence() { block_fenced = true; }

}  // namespace host

#define VISIT(address, size, write)                                                       \
    host::visit(static_cast<char*>(address), static_cast<uint32_t>(size), write, false,   \
                __builtin_return_address(0), *static_cast<void**>(__builtin_frame_address(0)))
#define RECEIVERS(size)                                                              \
    void __tsan_read##size(void* address) { VISIT(address, size, false); }           \
    void __tsan_write##size(void* address) { VISIT(address, size, true); }           \
    void __tsan_unaligned_read##size(void* address) { VISIT(address, size, false); } \
    void __tsan_unaligned_write##size(void* address) { VISIT(address, size, true); } \
    void __tsan_volatile_read##size(void* address) { VISIT(address, size, false); }  \
    void __tsan_volatile_write##size(void* address) { VISIT(address, size, true); }  \
    void __tsan_unaligned_volatile_read##size(void* address) { VISIT(address, size, false); } \
    void __tsan_unaligned_volatile_write##size(void* address) { VISIT(address, size, true); }

// What an index or alignment check passes: where it stands in the source.
struct SanitizerPlace {
    const char* file;
    uint32_t line, column;
};

extern "C" {
RECEIVERS(1)
RECEIVERS(2)
RECEIVERS(4)
RECEIVERS(8)
RECEIVERS(16)
void __tsan_read_range(void* address, size_t size) { VISIT(address, size, false); }
void __tsan_write_range(void* address, size_t size) { VISIT(address, size, true); }
void* __tsan_memcpy(void* to, void* from, size_t size) {
    VISIT(from, size, false);
    VISIT(to, size, true);
    return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, void* from, size_t size) {
    VISIT(from, size, false);
    VISIT(to, size, true);
    return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
    VISIT(to, size, true);
    return memset(to, value, size);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

void __ubsan_handle_out_of_bounds(const SanitizerPlace* place, uintptr_t) {
    host::fail("out-of-bounds", "an index is outside its array's declared bounds", place->file,
               static_cast<int>(place->line));
}
void __ubsan_handle_type_mismatch_v1(const SanitizerPlace* place, uintptr_t) {
    host::fail("misaligned", "an address is not a multiple of its type's alignment", place->file,
               static_cast<int>(place->line));
}
}

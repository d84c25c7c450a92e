// The rules of check mode, applied to every memory access of a kernel.
//
//   - Global memory: inside one array argument, for a write inside one that is not const.
//   - Shared memory: inside what the launch asked for, and written by this block, or by its cluster,
//     before it is read.
//   - An asynchronous copy writes from its start until its thread has waited for it: meanwhile nobody,
//     and later no other thread that is not ordered behind the wait, touches the place.
//   - Two accesses of one cell by different threads, one of them a write and not both atomic, must
//     be ordered (order.cpp).
//   - Shared memory of the cluster's other blocks: behind a first cluster barrier, while they live.
//     Mail: to a place that got none, and that its block used before it entered the cluster or never.
//   - A dependent launch: nothing but steady arguments before wait_for_previous, which some thread of
//     every block calls.
//   - Collectives: the whole block, or every live lane of the mask, at one line.
#include "checker.h"

#include <link.h>
#include <stdio.h>

namespace host {
namespace {

bool watching;
char *image_first, *image_end;
uint32_t waiting_sites[max_threads];

// A read of shared memory that nobody has written yet. It may turn out to be one side of a race, so
// it is reported at the next barrier only; in a cluster when its other blocks have had their turn.
struct EarlyRead {
    bool seen;
    int round;  // of the cluster
    Access access;
    const char* address;
    uint32_t size;
};
EarlyRead early_read;

int find_image(dl_phdr_info* info, size_t, void*) {
    const char* const here = reinterpret_cast<char*>(&watching);
    char* first = reinterpret_cast<char*>(info->dlpi_addr);
    char* end = first;
    bool mine = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        char* segment_end = first + segment.p_vaddr + segment.p_memsz;
        mine |= here >= first + segment.p_vaddr && here < segment_end;
        if (segment_end > end) end = segment_end;
    }
    if (!mine) return 0;
    image_first = first;
    image_end = end;
    return 1;
}

bool in_dynamic_shared(const char* address) {
    return address >= dsv4_dynamic_shared && address < dsv4_dynamic_shared + max_shared_bytes;
}

bool in_static_shared(const char* address) {
    const StaticShared statics = static_shared();
    return address >= statics.first && address < statics.end;
}

// Where accesses of that place are remembered: what a block of a cluster does during its turn, where
// others find it.
char* remembered_at(char* address) {
    if (cluster.size == 1) return address;
    const Image image = image_of(cluster.rank);
    if (in_static_shared(address)) return image.statics + (address - static_shared().first);
    if (address >= dsv4_dynamic_shared && address < dsv4_dynamic_shared + launch->shared_bytes)
        return image.dynamic + (address - dsv4_dynamic_shared);
    return address;
}

// Whether the place is in the shared memory of another block of the cluster; says so.
bool describe_image(char* out, size_t size, const char* address) {
    const size_t static_bytes = static_shared().end - static_shared().first;
    for (int rank = 0; cluster.size > 1 && rank < cluster.size; ++rank) {
        const Image image = image_of(rank);
        const bool is_static = address >= image.statics && address < image.statics + static_bytes;
        if (!is_static &&
            (address < image.dynamic || address >= image.dynamic + launch->shared_bytes))
            continue;
        snprintf(out, size, "byte %td of %s shared memory of the cluster's block %d",
                 address - (is_static ? image.statics : image.dynamic),
                 is_static ? "static" : "dynamic", rank);
        return true;
    }
    return false;
}

void describe_place(char* out, size_t size, const char* address) {
    if (describe_image(out, size, address)) return;
    if (in_static_shared(address)) {
        snprintf(out, size, "byte %td of static shared memory", address - static_shared().first);
        return;
    }
    if (in_dynamic_shared(address)) {
        snprintf(out, size, "byte %td of the launch's %u bytes of dynamic shared memory",
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
        snprintf(out, size, "address %p, which is near no argument", address);
    } else {
        snprintf(out, size, "byte %td of argument %d (%llu bytes)", address - nearest->first,
                 nearest->argument, static_cast<unsigned long long>(nearest->size_bytes));
    }
}

struct Visit {
    const char* address;
    uint32_t size;
    const char* verb;
    uint32_t site;
};

[[noreturn]] void report(const char* kind, const Visit& visit, const char* tail) {
    char place[160], text[sizeof Fault::text];
    describe_place(place, sizeof place, visit.address);
    snprintf(text, sizeof text, "%s of %u byte%s at %s%s", visit.verb, visit.size,
             visit.size == 1 ? "" : "s", place, tail);
    fault->here = chain_of(visit.site);
    fail(kind, text, "", 0);
}

uint32_t running_block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

[[noreturn]] void report_race(const Visit& visit, const Access& other, const char* other_verb) {
    early_read.seen = false;  // likely another symptom of the same missing barrier
    const uint3 who = block.threads[other.thread].index;
    const uint32_t number = block_number_of(other);
    const char* missing = number != running_block() && of_this_cluster(other)
                              ? "they have not waited for each other"
                          : number != running_block() ? "nothing orders the two blocks"
                          : other.thread / warpSize == block.current / warpSize
                              ? "there is no __syncwarp or __syncthreads between them"
                              : "there is no __syncthreads between them";
    char tail[200];
    snprintf(tail, sizeof tail, " races with a %s by thread (%u,%u,%u) of block (%u,%u,%u): %s",
             other_verb, who.x, who.y, who.z, number % gridDim.x, number / gridDim.x % gridDim.y,
             number / gridDim.x / gridDim.y, missing);
    fault->other = chain_of(other.site);
    report("race", visit, tail);
}

// Somebody touches what an asynchronous copy may still write.
[[noreturn]] void report_copy(const Visit& visit, const Access& copy) {
    early_read.seen = false;
    const uint3 who = block.threads[copy.thread].index;
    char tail[200];
    snprintf(
        tail, sizeof tail,
        " races with an asynchronous copy by thread (%u,%u,%u): that thread has not waited for "
        "it yet",
        who.x, who.y, who.z);
    fault->other = chain_of(copy.site);
    report("race", visit, tail);
}

// Makes the thread of an access the running one, for a report.
void blame(const Access& access) {
    const unsigned number = block_number_of(access);
    blockIdx = {number % gridDim.x, number / gridDim.x % gridDim.y, number / gridDim.x / gridDim.y};
    make_current(access.thread);
}

// Since the early read, so that nobody can write any more what was read.
bool others_have_had_their_turn() { return cluster.size == 1 || cluster.round > early_read.round; }

[[noreturn]] void report_early_read() {
    const EarlyRead early = early_read;
    early_read.seen = false;
    blame(early.access);
    report("uninitialised-shared", {early.address, early.size, "read", early.access.site},
           ", which no thread of the block has written");
}

// A read came too early and is met by its write now: told from the reader's side.
[[noreturn]] void report_early_race(const Visit& writer, const Access& read) {
    const Access write = access_now(writer.site, false);
    blame(read);
    report_race({writer.address, writer.size, "read", read.site}, write, "write");
}

void require_permission(const Visit& visit, bool write) {
    bool readable = false;
    const bool early = launch->dependent && !block.threads[block.current].waited;
    for (uint32_t i = 0; i < launch->extent_count; ++i) {
        const Extent& extent = launch->extents[i];
        if (visit.address < extent.first ||
            visit.address + visit.size > extent.first + extent.size_bytes)
            continue;
        if (early && !extent.steady)
            report("early-access", visit,
                   " before wait_for_previous: the kernel before may still use it");
        if (!write || extent.writable) return;
        readable = true;
    }
    if (readable) report("write-to-const", visit, " and is passed as a const pointer");
    report("out-of-bounds", visit, "");
}

void visit_cell(const Region& region, Cell& cell, const Visit& visit, const Access& mine,
                bool write) {
    if (region.shared && cell.write.on_its_way && of_this_cluster(cell.write))
        report_copy(visit, cell.write);
    const bool reads = !write || mine.atomic;
    if (region.shared && reads && !early_read.seen && !of_this_cluster(cell.write))
        early_read = {true, cluster.round, mine, visit.address, visit.size};
    if (!ordered_before_me(cell.write, region.shared) && !(cell.write.atomic && mine.atomic))
        report_race(visit, cell.write, cell.write.atomic ? "atomic update" : "write");
    if (!write) return remember_read(cell, mine, region.shared);
    for (Access& read : cell.reads) {
        if (ordered_before_me(read, region.shared)) {
            read.phase = 0;
        } else if (region.shared && !of_this_cluster(cell.write)) {
            report_early_race(visit, read);
        } else {
            report_race(visit, read, "read");
        }
    }
    cell.write = mine;
}

// The cells of a copy's place in shared memory, which has just been written there.
template <class Change>
void change_writes(const void* to, size_t size, const Change& change) {
    if (!watching) return;
    char* const place = remembered_at(static_cast<char*>(const_cast<void*>(to)));
    Region* const region = region_of(place);
    if (region == nullptr || !region->shared) return;
    const size_t offset = place - region->first;
    for (size_t at = offset; at < offset + size; at += region->cell_bytes)
        change(region->cells[at / region->cell_bytes].write);
}

}  // namespace

void visit(void* pointer, size_t size, bool write, bool atomic, void* pc, void* frame) {
    if (!watching) return;
    char* const address = static_cast<char*>(pointer);
    const char* stack = block.threads[block.current].fiber->stack;
    if (address >= stack && address < stack + stack_bytes) return;
    char* const remembered = remembered_at(address);
    Region* region = region_of(remembered);
    const bool in_image = address >= image_first && address < image_end;
    if (region == nullptr && in_image && !in_dynamic_shared(address)) return;  // constants
    const Visit visit{address, static_cast<uint32_t>(size),
                      atomic  ? "atomic update"
                      : write ? "write"
                              : "read",
                      intern_site(pc, frame)};
    if (region == nullptr || (region->shared && remembered + size > region->end))
        report("out-of-bounds", visit, "");
    if (!region->shared) require_permission(visit, write);
    if (region->cells == nullptr) return;
    const size_t offset = remembered - region->first;
    split_cells(*region, offset, size);
    const Access mine = access_now(visit.site, atomic);
    for (size_t at = offset; at < offset + size; at += region->cell_bytes)
        visit_cell(*region, region->cells[at / region->cell_bytes], visit, mine, write);
}

void note_atomic(const void* address, size_t size) {
    visit(const_cast<void*>(address), size, true, true, HOST_CALLER);
    order_by_atomic(address);
}

void note_fence() { order_by_fence(); }

void note_copy_starts(const void* to, size_t size) {
    change_writes(to, size, [](Access& write) { write.on_its_way = true; });
}

void note_copy_lands(const void* to, size_t size) {
    change_writes(to, size, [](Access& write) { write = access_now(write.site, false); });
}

void check_launch_begins() {
    dl_iterate_phdr(find_image, nullptr);
    begin_sites(image_first, image_end);
    const StaticShared statics = static_shared();
    for (int rank = 0; rank < cluster.size; ++rank) {
        const Image image = cluster.size > 1 ? image_of(rank)
                                             : Image{statics.first, dsv4_dynamic_shared};
        add_region(image.statics, image.statics + (statics.end - statics.first), true, 4, true);
        add_region(image.dynamic, image.dynamic + launch->shared_bytes, true, 4, true);
    }
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
    forget_regions();
    forget_order();
    forget_sites();
}

void check_cluster_begins() {
    early_read.seen = false;
    begin_cluster_order();
}

void check_turn_begins(unsigned number) { begin_turn_order(number); }

void check_block_ends() {
    if (early_read.seen && (others_have_had_their_turn() || others_have_returned()))
        report_early_read();
    if (!launch->dependent) return;
    for (int i = 0; i < block.thread_count; ++i)
        if (block.threads[i].waited) return;
    fail("early-end",
         "no thread of the block has called wait_for_previous: kernels behind would "
         "start before those in front have ended",
         "", 0);
}

void check_letter(const char* address, size_t size, int rank, const char* file, int line) {
    char* const place = remembered_at(const_cast<char*>(address));
    const Region* region = region_of(place);
    if (region == nullptr || !region->shared) return;  // the access itself tells
    const size_t first = (place - region->first) / region->cell_bytes;
    const size_t last = (place + size - 1 - region->first) / region->cell_bytes;
    for (size_t i = first; i <= last && place + size <= region->end; ++i) {
        const Cell& cell = region->cells[i];
        if (of_this_cluster(cell.write) && !before_entry(cell.write, rank))
            fail("race", "a letter goes to a place that has been written: nothing says it was read",
                 file, line);
        for (const Access& read : cell.reads)
            if (of_this_cluster(read) && !before_entry(read, rank))
                fail("race",
                     "a letter goes to a place that its block has read: no __syncthreads between "
                     "that and enter_cluster",
                     file, line);
    }
}

void check_block_synced() {
    if (early_read.seen && others_have_had_their_turn()) report_early_read();
    begin_phase();
}

void check_warp_synced(int warp, unsigned mask) { join_lanes(warp, mask); }

void check_arrives(int thread, void* pc, void* frame) {
    waiting_sites[thread] = intern_site(pc, frame);
}

int find_divergent(const int* threads, int count) {
    const int first = threads[0];
    int others = 0, other = -1;
    for (int i = 0; i < count; ++i) {
        if (same_lines(waiting_sites[threads[i]], waiting_sites[first])) continue;
        if (other < 0) other = threads[i];
        ++others;
    }
    if (other < 0) return -1;
    // Blame the smaller party: it is usually the one inside the condition.
    const int blamed = 2 * others <= count ? other : first;
    fault->here = chain_of(waiting_sites[blamed]);
    fault->other = chain_of(waiting_sites[blamed == first ? other : first]);
    return blamed;
}

void check_locates_fault(void* pc, void* frame) {
    // What follows from poison is not the cause.
    if (early_read.seen) {
        fault->here.count = fault->other.count = 0;
        report_early_read();
    }
    if (fault->here.count > 0) return;
    const int me = block.current;
    fault->here = chain_of(block.threads[me].file != nullptr ? waiting_sites[me]
                                                             : intern_site(pc, frame));
}

}  // namespace host

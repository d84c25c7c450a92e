// The memory of accesses: for every watched byte range, cells that hold the last write and up to
// three reads. A cell is as large as the accesses allow, at most four bytes.
#include <stdlib.h>

#include "checker.h"
#include "list.h"

namespace host {
namespace {

List<Region> regions;

}  // namespace

void add_region(char* first, char* end, bool shared, uint32_t cell_bytes, bool writable) {
    if (first == end) return;
    for (size_t i = 0; i < regions.count; ++i) {
        Region& old = regions.items[i];
        if (first >= old.end || end <= old.first) continue;
        // Overlapping arguments share one shadow.
        first = first < old.first ? first : old.first;
        end = end > old.end ? end : old.end;
        writable |= old.cells != nullptr;
        free(old.cells);
        old = regions.items[--regions.count];
        return add_region(first, end, shared, 1, writable);
    }
    Region region{first, end, shared, cell_bytes, nullptr};
    if (writable) {
        const size_t count = (end - first + cell_bytes - 1) / cell_bytes;
        region.cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
    }
    regions.push(region);
}

Region* region_of(const char* address) {
    for (size_t i = 0; i < regions.count; ++i) {
        Region& region = regions.items[i];
        if (address >= region.first && address < region.end) return &region;
    }
    return nullptr;
}

void split_cells(Region& region, size_t offset, size_t size) {
    const uint32_t old_bytes = region.cell_bytes;
    while ((offset | size) % region.cell_bytes != 0) region.cell_bytes /= 2;
    if (region.cell_bytes == old_bytes) return;
    const uint32_t parts = old_bytes / region.cell_bytes;
    const size_t count = (region.end - region.first + region.cell_bytes - 1) / region.cell_bytes;
    Cell* cells = static_cast<Cell*>(calloc(count, sizeof(Cell)));
    for (size_t i = 0; i < count; ++i) cells[i] = region.cells[i / parts];
    free(region.cells);
    region.cells = cells;
}

void remember_read(Cell& cell, const Access& mine, bool shared) {
    Access& first = cell.reads[0];
    if (ordered_before_me(first, shared)) {
        first = mine;
        return;
    }
    const bool same_warp = first.phase == mine.phase &&
                           first.thread / warpSize == mine.thread / warpSize;
    Access& other = cell.reads[same_warp ? 1 : 2];
    if (ordered_before_me(other, shared)) other = mine;
}

void forget_regions() {
    for (size_t i = 0; i < regions.count; ++i) free(regions.items[i].cells);
    regions.clear();
}

}  // namespace host

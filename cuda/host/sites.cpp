// Call sites of check mode: from code addresses to source lines, walked over frame pointers.
//
// The check build keeps frame pointers and inlines nothing, so the chain from an access outwards
// holds every helper up to the kernel. Lines come from the library's own line table, which Python
// reads; no debugger and no binutils are needed.
#include <stdlib.h>
#include <string.h>

#include "checker.h"

namespace host {
namespace {

constexpr int key_length = 4;  // callers that tell two sites apart
constexpr uint32_t table_size = 1 << 14;

struct Site {
    void* key[key_length];
    Chain chain;
    uint64_t lines_hash;
};

Site* sites;  // open addressing; site 0 stays empty and means "unknown"
uint32_t site_count;
char *code_first, *code_end;

int walk(void* pc, void* frame, void** out, int limit) {
    const char* stack = block.threads[block.current].fiber->stack;
    int count = 0;
    while (count < limit) {
        const char* code = static_cast<char*>(pc);
        if (code < code_first || code >= code_end) break;
        out[count++] = pc;
        const char* place = static_cast<char*>(frame);
        if (place < stack || place + 16 > stack + stack_bytes) break;
        pc = static_cast<void**>(frame)[1];
        frame = static_cast<void**>(frame)[0];
    }
    return count;
}

Frame line_of(void* pc) {
    // A return address may already belong to the next line.
    const uint64_t offset = static_cast<char*>(pc) - code_first - 1;
    uint32_t low = 0, high = launch->line_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (launch->lines[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return {0, 0};
    return {launch->lines[low - 1].file, launch->lines[low - 1].line};
}

uint64_t mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15ull; }

void fill(Site& site, void* pc, void* frame) {
    void* codes[chain_length];
    const int count = walk(pc, frame, codes, chain_length);
    site.lines_hash = 1;
    for (int i = 0; i < count; ++i) {
        const Frame place = line_of(codes[i]);
        if (place.line == 0) continue;  // the runtime's own code has no line table
        site.chain.frames[site.chain.count++] = place;
        site.lines_hash = mix(site.lines_hash,
                              static_cast<uint64_t>(place.file) << 32 | place.line);
    }
}

}  // namespace

void begin_sites(char* image_first, char* image_end) {
    code_first = image_first;
    code_end = image_end;
    sites = static_cast<Site*>(calloc(table_size, sizeof(Site)));
    site_count = 0;
}

void forget_sites() {
    free(sites);
    sites = nullptr;
}

uint32_t intern_site(void* pc, void* frame) {
    void* key[key_length] = {};
    const int count = walk(pc, frame, key, key_length);
    uint64_t hash = 0;
    for (int i = 0; i < count; ++i) hash = mix(hash, reinterpret_cast<uint64_t>(key[i]));
    for (uint32_t slot = hash >> 40;; ++slot) {
        slot = slot % table_size;
        if (slot == 0) continue;
        Site& site = sites[slot];
        if (memcmp(site.key, key, sizeof key) == 0) return slot;
        if (site.key[0] != nullptr) continue;
        if (site_count == table_size / 2) return 0;
        ++site_count;
        memcpy(site.key, key, sizeof key);
        fill(site, pc, frame);
        return slot;
    }
}

Chain chain_of(uint32_t site) { return sites[site].chain; }

bool same_lines(uint32_t site, uint32_t other) {
    return sites[site].lines_hash == sites[other].lines_hash;
}

}  // namespace host

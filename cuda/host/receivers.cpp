// Our ends of the calls that the compiler inserts for -fsanitize=thread,bounds,alignment. No
// sanitizer library is linked; the names and arguments are the compilers' interface.
#include <string.h>

#include "checker.h"

#define VISIT(address, size, write) host::visit(address, size, write, false, HOST_CALLER)
#define RECEIVE(prefix, size)                                                        \
    void __tsan_##prefix##read##size(void* address) { VISIT(address, size, false); } \
    void __tsan_##prefix##write##size(void* address) { VISIT(address, size, true); }
#define RECEIVE_ALL(size)     \
    RECEIVE(, size)           \
    RECEIVE(unaligned_, size) \
    RECEIVE(volatile_, size)  \
    RECEIVE(unaligned_volatile_, size)

namespace host {

// What an index or alignment check passes first.
struct SourcePlace {
    const char* file;
    uint32_t line, column;
};

}  // namespace host

extern "C" {

RECEIVE_ALL(1)
RECEIVE_ALL(2)
RECEIVE_ALL(4)
RECEIVE_ALL(8)
RECEIVE_ALL(16)

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

void __ubsan_handle_out_of_bounds(const host::SourcePlace* place, uintptr_t) {
    host::fail("out-of-bounds", "an index is outside its array's declared bounds", place->file,
               static_cast<int>(place->line));
}
void __ubsan_handle_type_mismatch_v1(const host::SourcePlace* place, uintptr_t) {
    host::fail("misaligned", "an address is not a multiple of its type's alignment", place->file,
               static_cast<int>(place->line));
}
}

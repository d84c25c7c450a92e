// A growing array that needs no C++ library: the zig toolchain links us without one.
#pragma once
#include <stddef.h>
#include <stdlib.h>

namespace host {

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

}  // namespace host

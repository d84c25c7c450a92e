// The reductions of cuda/common/reduce.cuh with one exchange instead of five or more: the last
// thread to arrive folds every lane in the same butterfly order, hence to the same bits.
#pragma once
#include "runtime.h"

namespace host {

template <class Fold, class Value>
inline Value butterfly(Value (&lanes)[warpSize]) {
    for (int width = warpSize / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; ++lane)
            lanes[lane] = Fold::fold(lanes[lane], lanes[lane + width]);
    return lanes[0];
}

template <class Fold, class Value>
void fold_warp(void* const* slots, unsigned) {
    Value lanes[warpSize];
    for (int lane = 0; lane < warpSize; ++lane) lanes[lane] = *static_cast<Value*>(slots[lane]);
    const Value total = butterfly<Fold>(lanes);
    for (int lane = 0; lane < warpSize; ++lane) *static_cast<Value*>(slots[lane]) = total;
}

template <class Fold, class Value>
void fold_block(void* const* slots, int count) {
    Value partials[max_warps];
    for (int warp = 0; warp < max_warps; ++warp) {
        partials[warp] = Fold::empty();
        if (warp * warpSize >= count) continue;
        Value lanes[warpSize];
        for (int lane = 0; lane < warpSize; ++lane)
            lanes[lane] = *static_cast<Value*>(slots[warp * warpSize + lane]);
        partials[warp] = butterfly<Fold>(lanes);
    }
    const Value total = butterfly<Fold>(partials);
    for (int i = 0; i < count; ++i) *static_cast<Value*>(slots[i]) = total;
}

template <class Fold, class Value>
inline void fold_warp_at_once(Value& value, const char* file, int line) {
    warp_exchange(~0u, &value, fold_warp<Fold, Value>, false, file, line);
}

template <class Fold, class Value>
inline void fold_block_at_once(Value& value, const char* file, int line) {
    block_exchange(&value, fold_block<Fold, Value>, file, line);
}

}  // namespace host

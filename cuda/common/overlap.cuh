// Overlap of a kernel's beginning with the end of the kernel before it.
//
// Programmatic dependent launch: such a kernel is launched as soon as every block of the kernel before it
// has come to let_next_start, or has ended. Until wait_for_previous returns it may read weights and
// nothing else: neither what an earlier kernel writes, nor may it write what an earlier one reads. Every
// thread that touches such memory calls it first, and every block calls it, for the kernel behind
// counts on it. In a plain launch both do nothing; on the host check mode reports what breaks these
// rules.
//
// A kernel that calls let_next_start behind its wait passes on: once the next one begins, all in front of
// this one has ended, and may be read at once.
#pragma once

#ifdef LAB_TIMELINE
#include "common/timeline.cuh"
#define NOTE_TIME(place) note_time(place)
#else
#define NOTE_TIME(place) ((void)0)
#endif

__device__ __forceinline__ void wait_for_previous() {
#ifdef DSV4_HOST
    host::note_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    NOTE_TIME(TIME_WAITED);
}

#ifdef DSV4_HOST
__device__ __forceinline__ void let_next_start(HOST_SITE_PARAMETERS) {
    host::note_start(file, line);
}
#else
__device__ __forceinline__ void let_next_start() {
    NOTE_TIME(TIME_BEGUN);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

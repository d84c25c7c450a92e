// Lets a host C++ compiler read a CUDA kernel file: include this before it.
//
// `__global__` and `__shared__` stay as they are here. dsv4/runtime/host_source.py rewrites them in
// the preprocessed text, because `extern __shared__ T x[]` needs more than a macro can do and
// because kernels are found by their `__global__`.
//
// What does not run here: waiting for another block outside cluster barriers (blocks and clusters run
// one after another), grid barriers, TMA and wgmma; a stack of more than 128 KiB a thread. __activemask is every live lane.
// Accesses never reorder: only check mode's rules find a missing fence. A `__device__` variable that
// kernels write is one per worker, so launch such a kernel with one worker.
#pragma once
#define DSV4_HOST 1

// Every system header comes first: some of CUDA's names below are taken by them.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime.h"
#include "vectors.h"

#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)  // the launch says how many blocks
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __noinline__ __attribute__((noinline))
#ifdef DSV4_CHECK
#define __forceinline__ inline  // a real call keeps the caller's line in the fault
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif

#include "atomics.h"
#include "collectives.h"
#include "copies.h"
#include "intrinsics.h"
#include "launch.h"
#include "reduce.h"
#include "tensor.h"

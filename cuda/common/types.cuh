// Fixed-width types, the same under NVRTC (which has no <stdint.h>) and on the host.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// Raw storage of a bfloat16 or float16; arithmetic happens in float after common/convert.cuh.
using bf16 = unsigned short;
using f16 = unsigned short;

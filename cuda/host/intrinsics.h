// CUDA's arithmetic intrinsics, with the device's answers where IEEE or the documentation fixes them.
//
// expf, logf and friends are the C library's: within the device's documented ulp, not its bits.
#pragma once
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

namespace host {

template <class To, class From>
HOST_UNCHECKED inline To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "reinterpreting keeps the size");
    To out;
    memcpy(&out, &value, sizeof out);
    return out;
}

// Float to integer as the device does it: NaN gives 0 (or the top bit for 64 bits), the rest saturates.
template <class To, class From>
inline To saturate(From rounded) {
    constexpr bool has_sign = static_cast<To>(-1) < static_cast<To>(0);
    constexpr int bits = 8 * sizeof(To) - (has_sign ? 1 : 0);
    const From limit = static_cast<From>(ldexp(1.0, bits));
    const To top = static_cast<To>(
        ~(has_sign ? static_cast<To>(1) << (8 * sizeof(To) - 1) : To(0)));
    if (rounded != rounded) return sizeof(To) == 8 ? static_cast<To>(1ull << 63) : To(0);
    if (rounded >= limit) return top;
    if (has_sign && rounded < -limit) return static_cast<To>(~top);
    if (!has_sign && rounded <= 0) return To(0);
    return static_cast<To>(rounded);
}

// One operand NaN gives the other, two give the device's NaN; -0 counts as smaller than +0.
template <class T, class Bits>
inline T larger(T a, T b) {
    if (a != a && b != b) return bits_as<T>(static_cast<Bits>(~static_cast<Bits>(0) >> 1));
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return bits_as<T>(static_cast<Bits>(bits_as<Bits>(a) & bits_as<Bits>(b)));
    return a > b ? a : b;
}
template <class T, class Bits>
inline T smaller(T a, T b) {
    if (a != a && b != b) return bits_as<T>(static_cast<Bits>(~static_cast<Bits>(0) >> 1));
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return bits_as<T>(static_cast<Bits>(bits_as<Bits>(a) | bits_as<Bits>(b)));
    return a < b ? a : b;
}

inline float cuda_fmaxf(float a, float b) { return larger<float, uint32_t>(a, b); }
inline float cuda_fminf(float a, float b) { return smaller<float, uint32_t>(a, b); }
inline double cuda_fmax(double a, double b) { return larger<double, uint64_t>(a, b); }
inline double cuda_fmin(double a, double b) { return smaller<double, uint64_t>(a, b); }
// 1/sqrt in double rounds to the same float as exact arithmetic; 1/sqrtf does not.
inline float cuda_rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline double cuda_rsqrt(double x) { return 1.0 / sqrt(x); }
inline float cuda_expf(float x) { return expf(x); }
inline float cuda_logf(float x) { return logf(x); }
inline float cuda_exp10f(float x) { return static_cast<float>(pow(10.0, static_cast<double>(x))); }
inline float cuda_sinf(float x) { return sinf(x); }
inline float cuda_cosf(float x) { return cosf(x); }

}  // namespace host

// The C library declares some of these itself, so they can only be renamed.
#define fmaxf host::cuda_fmaxf
#define fminf host::cuda_fminf
#define fmax host::cuda_fmax
#define fmin host::cuda_fmin
#define rsqrtf host::cuda_rsqrtf
#define rsqrt host::cuda_rsqrt
#define __frsqrt_rn host::cuda_rsqrtf
#define __expf host::cuda_expf
#define __logf host::cuda_logf
#define __exp10f host::cuda_exp10f
#define __sinf host::cuda_sinf
#define __cosf host::cuda_cosf

// NVRTC has neither, so a kernel that uses them would only build here: cuda/common/math.cuh has ours.
#undef INFINITY
#undef NAN

// --- reinterpreting -------------------------------------------------------------------------
inline unsigned __float_as_uint(float x) { return host::bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return host::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return host::bits_as<float>(x); }
inline float __int_as_float(int x) { return host::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return host::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return host::bits_as<double>(x); }

// --- rounding conversions -------------------------------------------------------------------
#define HOST_TO_INTEGER(from, name, To, From, suffix)                                         \
    inline To __##from##2##name##_rn(From x) { return host::saturate<To>(rint##suffix(x)); }  \
    inline To __##from##2##name##_rz(From x) { return host::saturate<To>(trunc##suffix(x)); } \
    inline To __##from##2##name##_rd(From x) { return host::saturate<To>(floor##suffix(x)); } \
    inline To __##from##2##name##_ru(From x) { return host::saturate<To>(ceil##suffix(x)); }
HOST_TO_INTEGER(float, int, int, float, f)
HOST_TO_INTEGER(float, uint, unsigned, float, f)
HOST_TO_INTEGER(float, ll, long long, float, f)
HOST_TO_INTEGER(float, ull, unsigned long long, float, f)
HOST_TO_INTEGER(double, int, int, double, )
HOST_TO_INTEGER(double, uint, unsigned, double, )
HOST_TO_INTEGER(double, ll, long long, double, )
HOST_TO_INTEGER(double, ull, unsigned long long, double, )
#undef HOST_TO_INTEGER
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __double2float_rz(double x) {
    const float nearest = static_cast<float>(x);
    return fabs(static_cast<double>(nearest)) > fabs(x) ? nextafterf(nearest, 0.0f) : nearest;
}
inline float __double2float_ru(double x) {
    const float nearest = static_cast<float>(x);
    return static_cast<double>(nearest) < x ? nextafterf(nearest, HUGE_VALF) : nearest;
}
inline float __double2float_rd(double x) {
    const float nearest = static_cast<float>(x);
    return static_cast<double>(nearest) > x ? nextafterf(nearest, -HUGE_VALF) : nearest;
}

// --- single roundings -----------------------------------------------------------------------
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __saturatef(float x) { return x != x ? 0.0f : x < 0 ? 0.0f : x > 1 ? 1.0f : x; }

// --- integers -------------------------------------------------------------------------------
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int bit = 0; bit < 32; ++bit) out |= (x >> bit & 1) << (31 - bit);
    return out;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
// Each selector nibble picks one of eight bytes; its top bit replicates that byte's sign.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> (4 * i) & 15;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7)) & 255);
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    return static_cast<unsigned>(both >> (shift & 31));
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

#define HOST_MIN_MAX(type)                                    \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
HOST_MIN_MAX(int)
HOST_MIN_MAX(unsigned)
HOST_MIN_MAX(long)
HOST_MIN_MAX(unsigned long)
HOST_MIN_MAX(long long)
HOST_MIN_MAX(unsigned long long)
#undef HOST_MIN_MAX
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// --- memory hints, clocks, stops ------------------------------------------------------------
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
template <class T>
T __ldcg(const T* address) {
    return *address;
}
template <class T>
T __ldca(const T* address) {
    return *address;
}
template <class T>
void __stcs(T* address, T value) {
    *address = value;
}
template <class T>
void __stcg(T* address, T value) {
    *address = value;
}

// Who sleeps waits for another block, which may need this core.
inline void __nanosleep(unsigned) { sched_yield(); }
inline long long clock64() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
namespace host {
inline int cuda_clock() { return static_cast<int>(clock64()); }
}  // namespace host
#define clock host::cuda_clock

[[noreturn]] inline void __trap(HOST_SITE_PARAMETERS) {
    host::fail("assertion", "__trap() was reached", file, line);
}
#undef assert
#define assert(condition) \
    ((condition) ? void(0) : host::fail("assertion", "failed: " #condition, __FILE__, __LINE__))

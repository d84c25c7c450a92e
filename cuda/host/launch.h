// From a kernel's C++ type to a signature string and a call with unpacked arguments.
//
// A code is one letter and a size in bytes: f4 f8 i1..i8 u1..u8; P before it is a const pointer, p
// a pointer. Vector types count as their component, so float4* is pf4. `v` is void.
#pragma once
#include <string.h>

#include "runtime.h"

namespace host {

template <class T>
struct Code {
    static constexpr char letter = '?';
};
#define HOST_CODE(type, kind)                      \
    template <>                                    \
    struct Code<type> {                            \
        static constexpr char letter = kind;       \
        static constexpr int bytes = sizeof(type); \
    };
#define HOST_CODES(name, type, kind) \
    HOST_CODE(type, kind)            \
    HOST_VECTOR_CODE(name##2, type)  \
    HOST_VECTOR_CODE(name##3, type)  \
    HOST_VECTOR_CODE(name##4, type)
#define HOST_VECTOR_CODE(vector, type) \
    template <>                        \
    struct Code<vector> : Code<type> {};
HOST_CODES(float, float, 'f')
HOST_CODES(double, double, 'f')
HOST_CODES(char, signed char, 'i')
HOST_CODES(short, short, 'i')
HOST_CODES(int, int, 'i')
HOST_CODES(longlong, long long, 'i')
HOST_CODES(uchar, unsigned char, 'u')
HOST_CODES(ushort, unsigned short, 'u')
HOST_CODES(uint, unsigned int, 'u')
HOST_CODES(ulonglong, unsigned long long, 'u')
HOST_CODE(char, 'i')
HOST_CODE(long, 'i')
HOST_CODE(unsigned long, 'u')
HOST_CODE(bool, 'u')
#undef HOST_CODE
#undef HOST_CODES
#undef HOST_VECTOR_CODE

template <class T>
struct Plain {
    using type = T;
};
template <class T>
struct Plain<const T> {
    using type = T;
};

template <class T>
struct Argument {
    static constexpr void spell(char*& out) {
        static_assert(Code<T>::letter != '?', "a kernel takes pointers and plain numbers by value");
        *out++ = Code<T>::letter;
        *out++ = static_cast<char>('0' + Code<T>::bytes);
    }
};
template <class T>
struct Argument<T*> {
    static constexpr void spell(char*& out) {
        *out++ = 'p';
        Argument<T>::spell(out);
    }
};
template <class T>
struct Argument<const T*> {
    static constexpr void spell(char*& out) {
        *out++ = 'P';
        Argument<T>::spell(out);
    }
};
template <>
struct Argument<void> {
    static constexpr void spell(char*& out) { *out++ = 'v'; }
};

template <class... A>
struct Signature {
    char text[4 * sizeof...(A) + 1] = {};
    constexpr Signature() {
        char* out = text;
        ((Argument<typename Plain<A>::type>::spell(out), *out++ = ','), ...);
        if (out != text) out[-1] = 0;
    }
};

template <int... I>
struct Indices {};
template <int N, int... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <int... I>
struct Count<0, I...> {
    using type = Indices<I...>;
};

template <class T>
HOST_UNCHECKED inline T unpack(const uint64_t& word) {
    static_assert(sizeof(T) <= sizeof word, "a kernel takes pointers and plain numbers by value");
    typename Plain<T>::type value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <auto K>
struct Trampoline;
template <class... A, void (*K)(A...)>
struct Trampoline<K> {
    static constexpr Signature<A...> signature{};
    HOST_UNCHECKED static void call(const uint64_t* values) {
        spread(values, typename Count<sizeof...(A)>::type{});
    }
    template <int... I>
    HOST_UNCHECKED static void spread(const uint64_t* values, Indices<I...>) {
        K(unpack<A>(values[I])...);
    }
};

}  // namespace host

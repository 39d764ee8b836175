// Vectors: at most as many numbers as a register of the machine has floats.
//
// The same text computes numbers and vectors: templates here and in the other headers
// take either. A condition on vectors is a mask, a vector of integers that are 0 or -1.
#pragma once

#include "flexc_scalar.h"

// Vectors are passed to functions, but all of these functions are inline.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wignored-attributes"

#ifndef FLEXC_VECTOR_BYTES
#if defined(__AVX512F__)
#define FLEXC_VECTOR_BYTES 64
#elif defined(__AVX__)
#define FLEXC_VECTOR_BYTES 32
#else
#define FLEXC_VECTOR_BYTES 16
#endif
#endif

// GCC's builtins of instructions are available.
#if defined(__AVX512F__) && !defined(__clang__)
#define FLEXC_AVX512
#endif
#if defined(__AVX__) && !defined(__clang__)
#define FLEXC_AVX
#endif

namespace flexc {

constexpr int vector_bytes = FLEXC_VECTOR_BYTES;

// The count of numbers of a type that fill a register.
template <class T> constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));

template <class T, int L> struct VectorOf {
    typedef T type __attribute__((vector_size(L * sizeof(T))));
    typedef T stored __attribute__((vector_size(L * sizeof(T)), aligned(alignof(T)), may_alias));
};

// A vector of L numbers. If a map has 64-bit numbers, L is lanes<double>: no vector is
// wider than a register, because GCC compares wider vectors number by number.
template <class T, int L = lanes<float>> using Vec = typename VectorOf<T, L>::type;

// A vector of 16-bit or 8-bit floats, stored as bits.
template <class T, int L> struct NarrowVector { Vec<decltype(T::raw), L> raw; };
template <int L> struct VectorOf<bfloat16, L> { using type = NarrowVector<bfloat16, L>; };
template <int L> struct VectorOf<half, L> { using type = NarrowVector<half, L>; };
template <int L> struct VectorOf<float8_e4m3, L> { using type = NarrowVector<float8_e4m3, L>; };
template <int L> struct VectorOf<float8_e5m2, L> { using type = NarrowVector<float8_e5m2, L>; };

template <int Bytes> struct IntegerOf;
template <> struct IntegerOf<1> { using type = int8_t; };
template <> struct IntegerOf<2> { using type = int16_t; };
template <> struct IntegerOf<4> { using type = int32_t; };
template <> struct IntegerOf<8> { using type = int64_t; };

template <int L> struct VectorOf<bool, L> {
    using type = Vec<typename IntegerOf<L == lanes<double> ? 8 : 4>::type, L>;
};
template <int L = lanes<float>> using Mask = Vec<bool, L>;

// The element type and the element count of a number or a vector V.
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<T&> { using type = T; };
template <class V> struct Shape {
    using element = typename Plain<decltype(V{}[0])>::type;
    static constexpr int count = sizeof(V) / sizeof(element);
    static constexpr bool is_vector = true;
};
template <class T, int L> struct Shape<NarrowVector<T, L>> {
    using element = T;
    static constexpr int count = L;
    static constexpr bool is_vector = true;
};
#define FLEXC_NUMBER(T)                                                                 \
    template <> struct Shape<T> {                                                       \
        using element = T;                                                              \
        static constexpr int count = 1;                                                 \
        static constexpr bool is_vector = false;                                        \
    };
FLEXC_NUMBER(bool)
FLEXC_NUMBER(int8_t)
FLEXC_NUMBER(int16_t)
FLEXC_NUMBER(int32_t)
FLEXC_NUMBER(int64_t)
FLEXC_NUMBER(uint8_t)
FLEXC_NUMBER(uint16_t)
FLEXC_NUMBER(uint32_t)
FLEXC_NUMBER(uint64_t)
FLEXC_NUMBER(bfloat16)
FLEXC_NUMBER(half)
FLEXC_NUMBER(float8_e4m3)
FLEXC_NUMBER(float8_e5m2)
FLEXC_NUMBER(float)
FLEXC_NUMBER(double)
#undef FLEXC_NUMBER

template <class V> using Element = typename Shape<V>::element;
template <class V> constexpr bool is_vector = Shape<V>::is_vector;
template <class V, bool> struct Rebound { template <class T> using type = T; };
template <class V> struct Rebound<V, true> {
    template <class T> using type = Vec<T, Shape<V>::count>;
};
// A number of type T, or a vector of T with as many elements as V.
template <class T, class V>
using Like = typename Rebound<V, is_vector<V>>::template type<T>;

template <bool> struct EnableIf {};
template <> struct EnableIf<true> { using type = int; };
template <class V> using IfVector = typename EnableIf<is_vector<V>>::type;

template <class T, class V>
FLEXC_INLINE auto bits(V x) {
    return __builtin_bit_cast(Like<T, V>, x);
}
template <class V>
FLEXC_INLINE auto to_unsigned(V x) {
    return Like<typename Unsigned<Element<V>>::type, V>(x);
}

// Return the result of a comparison as a bool or a mask.
FLEXC_INLINE bool mask(bool x) { return x; }
template <class V, IfVector<V> = 0>
FLEXC_INLINE auto mask(V x) {
    return __builtin_convertvector(x, Mask<Shape<V>::count>);
}

template <class V>
FLEXC_INLINE V select(bool condition, V a, V b) { return condition ? a : b; }
template <class V, IfVector<V> = 0>
FLEXC_INLINE V select(Mask<Shape<V>::count> condition, V a, V b) {
    using T = Element<V>;
    constexpr int L = Shape<V>::count;
    return __builtin_convertvector(condition, Vec<typename IntegerOf<sizeof(T)>::type, L>)
        ? a : b;
}
template <class T, int L>
FLEXC_INLINE NarrowVector<T, L> select(
    Mask<L> condition, NarrowVector<T, L> a, NarrowVector<T, L> b) {
    return {select(condition, a.raw, b.raw)};
}

// Return 1, or -1, where a condition holds, else 0.
FLEXC_INLINE int32_t one_if(bool x) { return x; }
FLEXC_INLINE int32_t minus_one_if(bool x) { return -int32_t(x); }
template <class V> FLEXC_INLINE V one_if(V x) { return -x; }
template <class V> FLEXC_INLINE V minus_one_if(V x) { return x; }

template <int L = lanes<float>, class T>
FLEXC_INLINE Vec<T, L> splat(T x) {
    return x - Vec<T, L>{};
}
template <int L = lanes<float>>
FLEXC_INLINE Mask<L> splat(bool x) { return Mask<L>{} - Element<Mask<L>>(x); }
template <int L = lanes<float>>
FLEXC_INLINE Vec<bfloat16, L> splat(bfloat16 x) { return {splat<L>(x.raw)}; }
template <int L = lanes<float>>
FLEXC_INLINE Vec<half, L> splat(half x) { return {splat<L>(x.raw)}; }

template <class T, int L = lanes<float>>
FLEXC_INLINE Vec<T, L> lane_numbers() {
    Vec<T, L> result{};
#pragma GCC unroll 64
    for (int i = 0; i < L; ++i) result[i] = i;
    return result;
}

template <int L = lanes<float>, class T>
FLEXC_INLINE Vec<T, L> load_vector(const T* p) {
    return *reinterpret_cast<const typename VectorOf<T, L>::stored*>(p);
}
template <int L = lanes<float>>
FLEXC_INLINE Vec<bfloat16, L> load_vector(const bfloat16* p) {
    return {load_vector<L>(&p->raw)};
}
template <int L = lanes<float>>
FLEXC_INLINE Vec<half, L> load_vector(const half* p) { return {load_vector<L>(&p->raw)}; }
template <int L = lanes<float>>
FLEXC_INLINE Vec<float8_e4m3, L> load_vector(const float8_e4m3* p) {
    return {load_vector<L>(&p->raw)};
}
template <int L = lanes<float>>
FLEXC_INLINE Vec<float8_e5m2, L> load_vector(const float8_e5m2* p) {
    return {load_vector<L>(&p->raw)};
}

template <class T, class V>
FLEXC_INLINE void store_vector(T* p, V x) {
    *reinterpret_cast<typename VectorOf<T, Shape<V>::count>::stored*>(p) = x;
}
template <class T, int L>
FLEXC_INLINE void store_vector(T* p, NarrowVector<T, L> x) { store_vector(&p->raw, x.raw); }

// Apply f to each lane of one or two vectors.
template <class F, class V>
FLEXC_INLINE V each_lane(F f, V x) {
    constexpr int L = Shape<V>::count;
    Element<V> in[L], out[L];
    store_vector(in, x);
    for (int i = 0; i < L; ++i) out[i] = f(in[i]);
    return load_vector<L>(out);
}
template <class F, class V>
FLEXC_INLINE V each_lane(F f, V x, V y) {
    constexpr int L = Shape<V>::count;
    Element<V> in[L], second[L], out[L];
    store_vector(in, x);
    store_vector(second, y);
    for (int i = 0; i < L; ++i) out[i] = f(in[i], second[i]);
    return load_vector<L>(out);
}

// Return the bits of 16-bit floats, rounded to nearest even, in 32-bit integers.
template <class V>
FLEXC_INLINE auto round_to(const bfloat16*, V x) {
    using U = Like<uint32_t, V>;
    const U u = bits<uint32_t>(x);
    const U rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return select(mask(x != x), U{} + 0x7fc0, rounded);
}
template <class V>
FLEXC_INLINE auto round_to(const half*, V x) {
    using U = Like<uint32_t, V>;
    const U u = bits<uint32_t>(x), magnitude = u & 0x7fffffff;
    // Adding 1/2 leaves a subnormal's rounded significand in the low bits.
    const U small = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000;
    const U odd = (magnitude >> 13) & 1;
    const U normal = (magnitude - 0x38000000 + 0xfff + odd) >> 13;
    const U large = select(mask(magnitude > 0x7f800000), U{} + 0x7e00, U{} + 0x7c00);
    const U finite = select(mask(magnitude < 0x38800000), small, normal);
    return ((u >> 16) & 0x8000) | select(mask(magnitude >= 0x47800000), large, finite);
}

template <class V>
FLEXC_INLINE auto widen_from(const bfloat16*, V raw) { return bits<float>(raw << 16); }
template <class V>
FLEXC_INLINE auto widen_from(const half*, V raw) {
    const V magnitude = raw & 0x7fff, sign = (raw & 0x8000) << 16;
    const V finite = bits<uint32_t>(bits<float>(magnitude << 13) * 0x1p112f);
    const V special = 0x7f800000 | (magnitude << 13);
    return bits<float>(select(mask(magnitude >= 0x7c00), special, finite) | sign);
}

template <class V>
FLEXC_INLINE auto widen_from(const float8_e5m2*, V raw) {
    return widen_from(static_cast<half*>(nullptr), raw << 8);
}
template <class V>
FLEXC_INLINE auto widen_from(const float8_e4m3*, V raw) {
    const V magnitude = raw & 0x7f, sign = (raw & 0x80) << 24;
    const V finite = bits<uint32_t>(bits<float>(magnitude << 20) * 0x1p120f);
    return bits<float>(select(mask(magnitude == 0x7f), V{} + 0x7fc00000, finite) | sign);
}

FLEXC_INLINE bfloat16::bfloat16(float x)
    : raw(static_cast<uint16_t>(round_to(static_cast<bfloat16*>(nullptr), x))) {}
FLEXC_INLINE half::half(float x)
    : raw(static_cast<uint16_t>(round_to(static_cast<half*>(nullptr), x))) {}
FLEXC_INLINE bfloat16::operator float() const {
    return widen_from(static_cast<bfloat16*>(nullptr), static_cast<uint32_t>(raw));
}
FLEXC_INLINE half::operator float() const {
    return widen_from(static_cast<half*>(nullptr), static_cast<uint32_t>(raw));
}

FLEXC_INLINE float8_e4m3::operator float() const {
    return widen_from(static_cast<float8_e4m3*>(nullptr), static_cast<uint32_t>(raw));
}
FLEXC_INLINE float8_e5m2::operator float() const {
    return widen_from(static_cast<float8_e5m2*>(nullptr), static_cast<uint32_t>(raw));
}

template <class T> constexpr bool is_narrow = false;
template <> constexpr bool is_narrow<bfloat16> = true;
template <> constexpr bool is_narrow<half> = true;
template <> constexpr bool is_narrow<float8_e4m3> = true;
template <> constexpr bool is_narrow<float8_e5m2> = true;
template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

template <class T, class V>
FLEXC_INLINE Like<T, V> convert(V x);

// Widen bytes to 32 bits. GCC has no such conversion of vectors, but of halves of them.
template <int L>
FLEXC_INLINE Vec<int32_t, L> widen_bytes(Vec<int8_t, L> x) {
#ifdef FLEXC_AVX512
    typedef char Bytes __attribute__((vector_size(L)));
    if constexpr (L == 16)
        return __builtin_ia32_pmovsxbd512_mask((Bytes)x, Vec<int32_t, L>{}, -1);
#endif
    return convert<int32_t>(convert<int16_t>(x));
}
template <int L>
FLEXC_INLINE Vec<uint32_t, L> widen_bytes(Vec<uint8_t, L> x) {
#ifdef FLEXC_AVX512
    typedef char Bytes __attribute__((vector_size(L)));
    if constexpr (L == 16)
        return (Vec<uint32_t, L>)__builtin_ia32_pmovzxbd512_mask(
            (Bytes)x, Vec<int32_t, L>{}, -1);
#endif
    return convert<uint32_t>(convert<uint16_t>(x));
}

// Convert a number, or each element of a vector, to T.
template <class T, class V>
FLEXC_INLINE Like<T, V> convert(V x) {
    if constexpr (is_same<T, Element<V>>)
        return x;
    else if constexpr (!is_vector<V>)
        return static_cast<T>(x);
    else if constexpr (is_narrow<Element<V>>)
        return convert<T>(widen_from(
            static_cast<Element<V>*>(nullptr), convert<uint32_t>(x.raw)));
    else if constexpr (is_narrow<T>)
        return {convert<uint16_t>(round_to(static_cast<T*>(nullptr), convert<float>(x)))};
    else if constexpr (sizeof(Element<V>) == 1 && sizeof(T) >= 4)
        return convert<T>(widen_bytes<Shape<V>::count>(x));
    else
        return __builtin_convertvector(x, Like<T, V>);
}

}  // namespace flexc

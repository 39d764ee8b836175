// Operations that C++ lacks or leaves undefined, for numbers and for vectors.
#pragma once

#include "flexc_vector.h"

namespace flexc {

// Integers wrap around, and no operation on them is undefined.

// Divide and round towards zero. For b = 0 the result is unspecified, without a trap.
template <class T, typename EnableIf<!is_vector<T>>::type = 0>
FLEXC_INLINE T divsi(T a, T b) {
    if (b == 0) return 0;
    return b == T(-1) ? static_cast<T>(-to_unsigned(a)) : static_cast<T>(a / b);
}
template <class V, IfVector<V> = 0>
FLEXC_INLINE V divsi(V a, V b) {
    if constexpr (sizeof(Element<V>) == 4) {
        // The quotient of two 32-bit integers, rounded to a double, truncates to the
        // exact quotient. b = -1 is separate because the quotient may overflow, b = 0
        // to avoid an undefined conversion.
        const V safe = select(mask((b == 0) | (b == -1)), V{} + 1, b);
        const auto quotient = convert<double>(a) / convert<double>(safe);
        return select(mask(b == -1), -a, convert<int32_t>(quotient));
    } else {
        return each_lane([](auto x, auto y) { return divsi(x, y); }, a, b);
    }
}
// Divide a vector by one number. Compilers divide by constants without a division.
template <class V, IfVector<V> = 0>
FLEXC_INLINE V divsi(V a, Element<V> b) {
    if (__builtin_constant_p(b) && b > 0) return a / b;
    return divsi(a, V{} + b);
}
template <class T, typename EnableIf<!is_vector<T>>::type = 0>
FLEXC_INLINE T divui(T a, T b) {
    return b == 0 ? T(0) : static_cast<T>(to_unsigned(a) / to_unsigned(b));
}
template <class V, IfVector<V> = 0>
FLEXC_INLINE V divui(V a, V b) {
    return each_lane([](auto x, auto y) { return divui(x, y); }, a, b);
}
template <class V, IfVector<V> = 0>
FLEXC_INLINE V divui(V a, Element<V> b) {
    if (__builtin_constant_p(b) && b > 0) return V(to_unsigned(a) / to_unsigned(b));
    return divui(a, V{} + b);
}

// Return the remainder of two numbers, two vectors, or a vector and a number.
template <class T, class B>
FLEXC_INLINE T remsi(T a, B b) {
    return static_cast<T>(a - divsi(a, b) * b);
}
template <class T, class B>
FLEXC_INLINE T floordivsi(T a, B b) {
    const T quotient = divsi(a, b), rest = static_cast<T>(a - quotient * b);
    const auto is_above = mask((rest != 0) & ((rest ^ b) < 0));
    return select(is_above, static_cast<T>(quotient - 1), quotient);
}
template <class T, class B>
FLEXC_INLINE T ceildivsi(T a, B b) {
    const T quotient = divsi(a, b), rest = static_cast<T>(a - quotient * b);
    const auto is_below = mask((rest != 0) & ((rest ^ b) >= 0));
    return select(is_below, static_cast<T>(quotient + 1), quotient);
}
template <class T, class B>
FLEXC_INLINE T remui(T a, B b) {
    return static_cast<T>(a - divui(a, b) * b);
}
template <class T, class B>
FLEXC_INLINE T ceildivui(T a, B b) {
    const T quotient = divui(a, b);
    return select(mask(remui(a, b) != 0), static_cast<T>(quotient + 1), quotient);
}

// A shift by the width or more gives the same as that many shifts by one.
template <class T> constexpr Element<T> bit_count = sizeof(Element<T>) * 8;

template <class T>
FLEXC_INLINE auto in_width(T n) {
    return mask((n >= 0) & (n < bit_count<T>));
}
template <class T>
FLEXC_INLINE T shli(T a, T n) {
    const T shifted = T(to_unsigned(a) << (n & (bit_count<T> - 1)));
    return select(in_width(n), shifted, T{});
}
template <class T>
FLEXC_INLINE T shrui(T a, T n) {
    const T shifted = T(to_unsigned(a) >> (n & (bit_count<T> - 1)));
    return select(in_width(n), shifted, T{});
}
template <class T>
FLEXC_INLINE T shrsi(T a, T n) {
    const T most = T{} + (bit_count<T> - 1);
    return static_cast<T>(a >> (select(in_width(n), n, most) & most));
}

template <class T>
FLEXC_INLINE T min(T a, T b) { return a < b ? a : b; }
template <class T>
FLEXC_INLINE T max(T a, T b) { return a > b ? a : b; }
template <class T>
FLEXC_INLINE T minui(T a, T b) { return to_unsigned(a) < to_unsigned(b) ? a : b; }
template <class T>
FLEXC_INLINE T maxui(T a, T b) { return to_unsigned(a) > to_unsigned(b) ? a : b; }
template <class T>
FLEXC_INLINE T absi(T a) { return a < 0 ? static_cast<T>(-a) : a; }

// Compute a > b ? a : b and a < b ? a : b, one instruction on most machines. For
// vectors of 512 bits GCC finds the instruction only through its builtin.
template <class V>
FLEXC_INLINE V larger(V a, V b) { return a > b ? a : b; }
template <class V>
FLEXC_INLINE V smaller(V a, V b) { return a < b ? a : b; }
#ifdef FLEXC_AVX512
using Float16Lanes = Vec<float, 16>;
FLEXC_INLINE Float16Lanes larger(Float16Lanes a, Float16Lanes b) {
    return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
}
FLEXC_INLINE Float16Lanes smaller(Float16Lanes a, Float16Lanes b) {
    return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
}
#endif

// IEEE 754-2019 minimum and maximum: NaN if an operand is NaN.
template <class T>
FLEXC_INLINE T minimumf(T a, T b) { return (a < b) | (a != a) ? a : b; }
template <class T>
FLEXC_INLINE T maximumf(T a, T b) { return (a > b) | (a != a) ? a : b; }
// C's fmin and fmax: if only one operand is a number, that operand.
template <class T>
FLEXC_INLINE T minnumf(T a, T b) { return (a < b) | (b != b) ? a : b; }
template <class T>
FLEXC_INLINE T maxnumf(T a, T b) { return (a > b) | (b != b) ? a : b; }

// Truncate. A value out of range gives the end of the range, NaN gives 0.
template <class To, class V>
FLEXC_INLINE Like<To, V> fptosi(V x) {
    using From = Element<V>;
    using R = Like<To, V>;
    constexpr int width = sizeof(To) * 8 - 1;
    constexpr To largest = static_cast<To>((uint64_t(1) << width) - 1);
    const From limit = static_cast<From>(uint64_t(1) << width);
    const auto inside = mask((x >= -limit) & (x < limit));
    const R value = convert<To>(select(inside, x, V{}));
    const R low = R{} + static_cast<To>(-largest - 1), high = R{} + largest;
    return select(mask(x >= limit), high, select(mask(x < -limit), low, value));
}

template <class To, class V>
FLEXC_INLINE Like<To, V> fptoui(V x) {
    using From = Element<V>;
    using Wide = typename Unsigned<To>::type;
    using R = Like<Wide, V>;
    constexpr int width = sizeof(To) * 8;
    const From limit = static_cast<From>(uint64_t(1) << (width - 1)) * 2;
    const auto inside = mask((x > -1) & (x < limit));
    const R value = convert<Wide>(select(inside, x, V{}));
    return Like<To, V>(select(mask(x >= limit), R{} + Wide(-1), value));
}

template <class M>
FLEXC_INLINE bool all(M condition) {
    typename IntegerOf<8>::type parts[(sizeof(M) + 7) / 8];
    __builtin_memset(parts, -1, sizeof(parts));
    __builtin_memcpy(parts, &condition, sizeof(condition));
    int64_t both = -1;
    for (int64_t part : parts) both &= part;
    return both == -1;
}
#ifdef FLEXC_AVX512
FLEXC_INLINE bool all(Vec<int32_t, 16> condition) {
    return __builtin_ia32_ptestmd512(condition, condition, -1) == 0xffff;
}
FLEXC_INLINE bool all(Vec<int64_t, 8> condition) {
    const auto lanes = Vec<long long, 8>(condition);
    return __builtin_ia32_ptestmq512(lanes, lanes, -1) == 0xff;
}
#endif
#ifdef FLEXC_AVX
FLEXC_INLINE bool all(Vec<int32_t, 8> condition) {
    return __builtin_ia32_movmskps256(bits<float>(condition)) == 0xff;
}
FLEXC_INLINE bool all(Vec<int64_t, 4> condition) {
    return __builtin_ia32_movmskpd256(bits<double>(condition)) == 0xf;
}
#endif

// Return true if lane i's offset is lane 0's plus i, so that one load reads the vector.
template <class V>
FLEXC_INLINE bool are_successive(V offset) {
    constexpr int L = Shape<V>::count;
    return all(mask(offset == offset[0] + lane_numbers<Element<V>, L>()));
}

template <class T, class I, typename EnableIf<!is_vector<I>>::type = 0>
FLEXC_INLINE T read(const T* p, I offset) { return p[offset]; }

// Read the first `count` lanes: offsets of other lanes may be out of range.
template <class T, class I, IfVector<I> = 0>
FLEXC_INLINE auto read(const T* p, I offset, int count = Shape<I>::count) {
    constexpr int L = Shape<I>::count;
    if (count >= L && are_successive(offset)) return load_vector<L>(p + offset[0]);
    T lane[L] = {};
    for (int i = 0; i < (count < L ? count : L); ++i) lane[i] = p[offset[i]];
    return load_vector<L>(lane);
}

// Read 0 unless valid. The address is always inside the tensor, so that the compiler
// may gather. An empty tensor has no such address; then the load reads `nothing`.
template <class T, class I, typename EnableIf<!is_vector<I>>::type = 0>
FLEXC_INLINE T read_if(bool valid, const T* p, I offset) {
    static const T nothing[1] = {};
    const T* base = p ? p : nothing;
    const T value = base[valid ? offset : I(0)];
    return valid ? value : T(0);
}

template <class M, class T, class I, IfVector<I> = 0>
FLEXC_INLINE auto read_if(M valid, const T* p, I offset, int count = Shape<I>::count) {
    constexpr int L = Shape<I>::count;
    if (count >= L && all(valid) && are_successive(offset))
        return load_vector<L>(p + offset[0]);
    T lane[L] = {};
    for (int i = 0; i < (count < L ? count : L); ++i)
        if (valid[i]) lane[i] = p[offset[i]];
    return load_vector<L>(lane);
}
template <class M, class T, class I, IfVector<M> = 0, typename EnableIf<!is_vector<I>>::type = 0>
FLEXC_INLINE auto read_if(M valid, const T* p, I offset, int count = Shape<M>::count) {
    return read_if(valid, p, splat<Shape<M>::count>(offset), count);
}
template <class T, class I, IfVector<I> = 0>
FLEXC_INLINE auto read_if(bool valid, const T* p, I offset, int count = Shape<I>::count) {
    return read_if(splat<Shape<I>::count>(valid), p, offset, count);
}

}  // namespace flexc

// Scalar types and the operations on them that C++ lacks or leaves undefined.
#pragma once

using int8_t = __INT8_TYPE__;
using int16_t = __INT16_TYPE__;
using int32_t = __INT32_TYPE__;
using int64_t = __INT64_TYPE__;
using uint8_t = __UINT8_TYPE__;
using uint16_t = __UINT16_TYPE__;
using uint32_t = __UINT32_TYPE__;
using uint64_t = __UINT64_TYPE__;
using size_t = __SIZE_TYPE__;

#define FLEXC_INLINE inline __attribute__((always_inline))
#define FLEXC_KERNEL extern "C" __attribute__((visibility("default")))

namespace flexc {

template <class To, class From>
FLEXC_INLINE To bits(From x) {
    return __builtin_bit_cast(To, x);
}

template <class T> struct Unsigned;
template <> struct Unsigned<bool> { using type = bool; };
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };
template <class T>
FLEXC_INLINE auto to_unsigned(T x) { return static_cast<typename Unsigned<T>::type>(x); }

// ---- 16-bit floats: stored as bits, computed with as float ----

struct bfloat16 {
    uint16_t raw;
    bfloat16() = default;
    FLEXC_INLINE bfloat16(float x) {
        uint32_t u = bits<uint32_t>(x);
        uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        raw = static_cast<uint16_t>(x != x ? 0x7fc0 : rounded);
    }
    FLEXC_INLINE operator float() const {
        return bits<float>(static_cast<uint32_t>(raw) << 16);
    }
};

struct half {
    uint16_t raw;
    half() = default;
    FLEXC_INLINE half(float x) {
        const uint32_t u = bits<uint32_t>(x), magnitude = u & 0x7fffffff;
        // Adding 1/2 leaves a subnormal's significand, rounded, in the low bits.
        const uint32_t small = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000;
        const uint32_t odd = (magnitude >> 13) & 1;
        const uint32_t normal = (magnitude - 0x38000000 + 0xfff + odd) >> 13;
        const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        uint32_t rounded = magnitude < 0x38800000 ? small : normal;
        rounded = magnitude >= 0x47800000 ? large : rounded;
        raw = static_cast<uint16_t>(((u >> 16) & 0x8000) | rounded);
    }
    FLEXC_INLINE operator float() const {
        const uint32_t magnitude = raw & 0x7fffu, sign = (raw & 0x8000u) << 16;
        const uint32_t finite = bits<uint32_t>(bits<float>(magnitude << 13) * 0x1p112f);
        const uint32_t special = 0x7f800000 | (magnitude << 13);
        return bits<float>((magnitude >= 0x7c00 ? special : finite) | sign);
    }
};

// ---- constants ----

constexpr float inf_f32 = __builtin_inff();
constexpr float nan_f32 = __builtin_nanf("");
constexpr double inf_f64 = __builtin_inf();
constexpr double nan_f64 = __builtin_nan("");

// ---- integers: wrap around, and no operation is undefined ----

// Rounded towards zero; some number, and no trap, for b = 0.
template <class T>
FLEXC_INLINE T divsi(T a, T b) {
    if (b == 0) return 0;
    return b == T(-1) ? static_cast<T>(-to_unsigned(a)) : static_cast<T>(a / b);
}
// The quotient of two 32-bit integers, rounded to a double, truncates to the exact
// one; unlike integer division this works in vectors.
template <>
FLEXC_INLINE int32_t divsi(int32_t a, int32_t b) {
    if (__builtin_constant_p(b) && b > 0) return a / b;
    double divisor = b == 0 ? 1.0 : static_cast<double>(b);
    // INT_MIN / -1 wraps around by way of the larger type.
    return static_cast<int32_t>(static_cast<int64_t>(static_cast<double>(a) / divisor));
}
template <class T>
FLEXC_INLINE T remsi(T a, T b) {
    return static_cast<T>(a - divsi(a, b) * b);
}
template <class T>
FLEXC_INLINE T floordivsi(T a, T b) {
    T quotient = divsi(a, b), rest = static_cast<T>(a - quotient * b);
    return static_cast<T>(quotient - ((rest != 0) & ((rest < 0) != (b < 0))));
}
template <class T>
FLEXC_INLINE T ceildivsi(T a, T b) {
    T quotient = divsi(a, b), rest = static_cast<T>(a - quotient * b);
    return static_cast<T>(quotient + ((rest != 0) & ((rest < 0) == (b < 0))));
}
template <class T>
FLEXC_INLINE T divui(T a, T b) {
    return b == 0 ? T(0) : static_cast<T>(to_unsigned(a) / to_unsigned(b));
}
template <class T>
FLEXC_INLINE T remui(T a, T b) {
    return b == 0 ? a : static_cast<T>(to_unsigned(a) % to_unsigned(b));
}
template <class T>
FLEXC_INLINE T ceildivui(T a, T b) {
    return static_cast<T>(divui(a, b) + (remui(a, b) != 0));
}

// Shifts by the width or more give what shifting one by one would.
template <class T>
FLEXC_INLINE bool in_width(T n) {
    return to_unsigned(n) < sizeof(T) * 8;
}
template <class T>
FLEXC_INLINE T shli(T a, T n) {
    return in_width(n) ? static_cast<T>(to_unsigned(a) << (n & T(sizeof(T) * 8 - 1))) : T(0);
}
template <class T>
FLEXC_INLINE T shrui(T a, T n) {
    return in_width(n) ? static_cast<T>(to_unsigned(a) >> (n & T(sizeof(T) * 8 - 1))) : T(0);
}
template <class T>
FLEXC_INLINE T shrsi(T a, T n) {
    T amount = in_width(n) ? n : T(sizeof(T) * 8 - 1);
    return static_cast<T>(a >> (amount & T(sizeof(T) * 8 - 1)));
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
FLEXC_INLINE T absi(T a) { return a < 0 ? static_cast<T>(-to_unsigned(a)) : a; }

// ---- floats ----

// IEEE 754-2019 minimum and maximum: NaN if either is.
template <class T>
FLEXC_INLINE T minimumf(T a, T b) { return (a < b) | (a != a) ? a : b; }
template <class T>
FLEXC_INLINE T maximumf(T a, T b) { return (a > b) | (a != a) ? a : b; }
// C's fmin and fmax: the number if only one is.
template <class T>
FLEXC_INLINE T minnumf(T a, T b) { return (a < b) | (b != b) ? a : b; }
template <class T>
FLEXC_INLINE T maxnumf(T a, T b) { return (a > b) | (b != b) ? a : b; }

// Truncation; out of range gives the end of the range, NaN gives 0.
template <class To, class From>
FLEXC_INLINE To fptosi(From x) {
    constexpr int width = sizeof(To) * 8 - 1;
    constexpr To largest = static_cast<To>((uint64_t(1) << width) - 1);
    const From limit = static_cast<From>(uint64_t(1) << width);
    const bool inside = (x >= -limit) & (x < limit);
    const To value = static_cast<To>(inside ? x : From(0));
    return x >= limit ? largest : x < -limit ? static_cast<To>(-largest - 1) : value;
}

template <class To, class From>
FLEXC_INLINE To fptoui(From x) {
    constexpr int width = sizeof(To) * 8;
    using Wide = typename Unsigned<To>::type;
    const From limit = static_cast<From>(uint64_t(1) << (width - 1)) * 2;
    const bool inside = (x > -1) & (x < limit);
    const Wide value = static_cast<Wide>(inside ? x : From(0));
    return static_cast<To>(x >= limit ? Wide(-1) : value);
}

// ---- reading captured tensors ----

template <class T, class I>
FLEXC_INLINE T read(const T* p, I offset) { return p[offset]; }
// 0 unless valid. The address read is one of the tensor's in any case, so that the
// compiler may gather; an empty tensor has none, so another is read in its place.
template <class T, class I>
FLEXC_INLINE T read_if(bool valid, const T* p, I offset) {
    static const T nothing[1] = {};
    const T* base = p ? p : nothing;
    const T value = base[valid ? offset : I(0)];
    return valid ? value : T(0);
}

}  // namespace flexc

// Numbers: their types, 16-bit floats, subnormal numbers, constants.
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
// For lambdas, which `inline` cannot declare.
#define FLEXC_EACH __attribute__((always_inline))
// A function that one separately compiled object defines for all kernels that call it.
#define FLEXC_SHARED __attribute__((noinline))
#define FLEXC_KERNEL extern "C" __attribute__((visibility("default")))

namespace flexc {

// Return the number of parts of a size that hold n.
FLEXC_INLINE constexpr int parts_of(int n, int size) { return (n + size - 1) / size; }

template <class T> struct Unsigned;
template <> struct Unsigned<bool> { using type = bool; };
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };

// 16-bit floats are stored as bits. Arithmetic converts them to float.

struct bfloat16 {
    uint16_t raw;
    bfloat16() = default;
    FLEXC_INLINE bfloat16(float x);
    FLEXC_INLINE operator float() const;
};

struct half {
    uint16_t raw;
    half() = default;
    FLEXC_INLINE half(float x);
    FLEXC_INLINE operator float() const;
};

// 8-bit floats are only read: one with 4 bits of exponent, without infinities, and one
// with 5, the upper half of a `half`.

struct float8_e4m3 {
    uint8_t raw;
    FLEXC_INLINE operator float() const;
};

struct float8_e5m2 {
    uint8_t raw;
    FLEXC_INLINE operator float() const;
};

// While an instance lives, results below the least normal number are 0 in this thread,
// on x86, which has a mode for that. Intel's cores compute subnormal results very
// slowly, and weights and decayed sums contain many. Numbers that are read stay
// unchanged, so that a mod's comparisons with its data are exact. Arm's cores lose no
// time.
class FlushSubnormals {
#ifdef __SSE__
    static constexpr unsigned flush_to_zero = 1 << 15;
    const unsigned before = __builtin_ia32_stmxcsr();

public:
    FLEXC_INLINE FlushSubnormals() { __builtin_ia32_ldmxcsr(before | flush_to_zero); }
    FLEXC_INLINE ~FlushSubnormals() { __builtin_ia32_ldmxcsr(before); }
#else
public:
    FLEXC_INLINE FlushSubnormals() {}
#endif
    FlushSubnormals(const FlushSubnormals&) = delete;
};

constexpr float inf_f32 = __builtin_inff();
constexpr float nan_f32 = __builtin_nanf("");
constexpr double inf_f64 = __builtin_inf();
constexpr double nan_f64 = __builtin_nan("");

}  // namespace flexc

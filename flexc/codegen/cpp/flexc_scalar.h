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
// A function that an object of its own defines, for all kernels that call it.
#define FLEXC_SHARED __attribute__((noinline))
#define FLEXC_KERNEL extern "C" __attribute__((visibility("default")))

namespace flexc {

template <class T> struct Unsigned;
template <> struct Unsigned<bool> { using type = bool; };
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };

// ---- 16-bit floats: stored as bits, computed with as float ----

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

// ---- subnormal numbers ----

// While one lives, what this thread computes below the least normal number is 0, where
// that is what x86 has a bit for. Intel's cores take over a hundred cycles for a
// subnormal result, and weights and decayed sums are full of them. Numbers that are
// read stay what they are, so that comparisons of a mod with its data are exact. Arm's
// cores lose no time.
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

// ---- constants ----

constexpr float inf_f32 = __builtin_inff();
constexpr float nan_f32 = __builtin_nanf("");
constexpr double inf_f64 = __builtin_inf();
constexpr double nan_f64 = __builtin_nan("");

}  // namespace flexc

// Elementary functions. Those of float that attention uses are branch-free
// polynomials, which the compiler vectorises in plain loops; the rest are libm's.
//
// Largest errors over all floats, in units in the last place of the result, as
// tests/codegen/test_cpp_math.py measures: exp2 1.2, exp 1.2, expm1 2, log 1, log2 2,
// log1p 3, tanh 3. Infinities, NaN, zeros and subnormal arguments are as in libm;
// exp2 and exp give 0 below 2^-125, because masked scores must not go through
// subnormal numbers, which are slow.
#pragma once

#include "flexc_scalar.h"

namespace flexc {

// x 2^n for n in [-125, 129].
FLEXC_INLINE float scale(float x, int32_t n) {
    return (x + x) * bits<float>((n + 126) << 23);
}

// x rounded to an integer, for |x| < 2^22, as bits above those of this number.
constexpr float round_magic = 0x1.8p23f;

FLEXC_INLINE int32_t rounded(float shifted) {
    return bits<int32_t>(shifted) - bits<int32_t>(round_magic);
}

FLEXC_INLINE float clamp(float x, float low, float high) {
    x = x < low ? low : x;  // NaN stays
    return x > high ? high : x;
}

FLEXC_INLINE float exp2(float x) {
    const float inside = clamp(x, -125.0f, 129.0f);
    const float shifted = inside + round_magic;
    const float r = inside - (shifted - round_magic);
    float q = 1.5353323e-4f;
    q = q * r + 1.33989495e-3f;
    q = q * r + 9.61843785e-3f;
    q = q * r + 5.55033237e-2f;
    q = q * r + 2.40226477e-1f;
    q = q * r + 6.93147182e-1f;
    const float result = scale(q * r + 1.0f, rounded(shifted));
    return x < -125.0f ? 0.0f : result;
}

// What exp and expm1 share: x = n ln 2 + r, and r + r^2 q(r) = e^r - 1.
struct ReducedExp {
    float r, q;
    int32_t n;
};

FLEXC_INLINE ReducedExp reduce_exp(float x) {
    const float shifted = x * 1.44269504f + round_magic;
    const float n = shifted - round_magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float q = 1.38827646e-3f;
    q = q * r + 8.36652610e-3f;
    q = q * r + 4.16671969e-2f;
    q = q * r + 1.66665435e-1f;
    q = q * r + 4.99999970e-1f;
    return {r, q, rounded(shifted)};
}

FLEXC_INLINE float exp(float x) {
    const ReducedExp e = reduce_exp(clamp(x, -86.643f, 89.0f));
    const float result = scale(e.r * e.r * e.q + e.r + 1.0f, e.n);
    return x < -86.643f ? 0.0f : result;
}

FLEXC_INLINE float expm1(float x) {
    const ReducedExp e = reduce_exp(clamp(x, -30.0f, 89.0f));
    // Half of 2^n, which may be too large for a float.
    const float power = bits<float>((e.n - 1 + 127) << 23);
    const float m = e.r * e.r * e.q + e.r;
    const float result = 2.0f * (power * m + (power - 0.5f));
    return x == 0.0f ? x : result;
}

// log(x) = e ln 2 + log(1 + f), with 1 + f in [sqrt(1/2), sqrt(2)).
struct ReducedLog {
    float f, q, e;  // log(1 + f) = f - f^2 / 2 + f^3 q
};

FLEXC_INLINE ReducedLog reduce_log(float x) {
    const bool tiny = x < 0x1p-126f;
    const int32_t u = bits<int32_t>(tiny ? x * 0x1p25f : x);
    const int32_t above = u - 0x3f3504f3;  // bits of sqrt(1/2)
    const int32_t e = (above >> 23) - (tiny ? 25 : 0);
    const float f = bits<float>((above & 0x7fffff) + 0x3f3504f3) - 1.0f;
    float q = 7.0376836292e-2f;
    q = q * f - 1.1514610310e-1f;
    q = q * f + 1.1676998740e-1f;
    q = q * f - 1.2420140846e-1f;
    q = q * f + 1.4249322787e-1f;
    q = q * f - 1.6668057665e-1f;
    q = q * f + 2.0000714765e-1f;
    q = q * f - 2.4999993993e-1f;
    q = q * f + 3.3333331174e-1f;
    return {f, q, static_cast<float>(e)};
}

// The logarithm's value where the polynomial does not hold.
FLEXC_INLINE float log_special(float x, float value) {
    value = x == 0.0f ? -inf_f32 : value;
    value = x < 0.0f ? nan_f32 : value;
    return (x != x) | (x == inf_f32) ? x : value;
}

FLEXC_INLINE float log(float x) {
    const ReducedLog l = reduce_log(x);
    const float f2 = l.f * l.f;
    const float low = l.f * f2 * l.q - l.e * 2.12194440e-4f - 0.5f * f2;
    return log_special(x, l.e * 0.693359375f + (l.f + low));
}

FLEXC_INLINE float log2(float x) {
    const ReducedLog l = reduce_log(x);
    const float f2 = l.f * l.f;
    const float low = l.f * f2 * l.q - 0.5f * f2;
    // log2(e) in two parts, of which the first is exact in few bits.
    const float tail = low * 1.44269504f + l.f * 0.44269504f;
    return log_special(x, l.e + (l.f + tail));
}

// log(1 + x) = log(u) x / (u - 1) for u = 1 + x rounded (Kahan).
FLEXC_INLINE float log1p(float x) {
    const float u = 1.0f + x, d = u - 1.0f;
    const float quotient = log(u) * (x / d);
    return (d == 0.0f) | (x == inf_f32) ? x : quotient;
}

FLEXC_INLINE float absf(float x) { return __builtin_fabsf(x); }
FLEXC_INLINE float copysign(float x, float y) { return __builtin_copysignf(x, y); }

// tanh|x| = -t / (t + 2) for t = expm1(-2|x|)
FLEXC_INLINE float tanh(float x) {
    const float t = expm1(-2.0f * absf(x));
    return copysign(-t / (t + 2.0f), x);
}

FLEXC_INLINE float fma(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
FLEXC_INLINE double fma(double a, double b, double c) {
#ifdef __FMA__
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

FLEXC_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
FLEXC_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

// Rounding is to nearest even wherever these run.
FLEXC_INLINE float roundeven(float x) { return __builtin_rintf(x); }
FLEXC_INLINE double roundeven(double x) { return __builtin_rint(x); }
FLEXC_INLINE double absf(double x) { return __builtin_fabs(x); }
FLEXC_INLINE double copysign(double x, double y) { return __builtin_copysign(x, y); }

#define FLEXC_LIBM(name)                                                          \
    FLEXC_INLINE float name(float x) { return __builtin_##name##f(x); }           \
    FLEXC_INLINE double name(double x) { return __builtin_##name(x); }
#define FLEXC_LIBM_F64(name)                                                      \
    FLEXC_INLINE double name(double x) { return __builtin_##name(x); }
#define FLEXC_LIBM_2(name)                                                        \
    FLEXC_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); } \
    FLEXC_INLINE double name(double x, double y) { return __builtin_##name(x, y); }

FLEXC_LIBM_F64(exp)
FLEXC_LIBM_F64(exp2)
FLEXC_LIBM_F64(expm1)
FLEXC_LIBM_F64(log)
FLEXC_LIBM_F64(log2)
FLEXC_LIBM_F64(log1p)
FLEXC_LIBM_F64(tanh)
FLEXC_LIBM(acos)
FLEXC_LIBM(acosh)
FLEXC_LIBM(asin)
FLEXC_LIBM(asinh)
FLEXC_LIBM(atan)
FLEXC_LIBM(atanh)
FLEXC_LIBM(cbrt)
FLEXC_LIBM(ceil)
FLEXC_LIBM(cos)
FLEXC_LIBM(cosh)
FLEXC_LIBM(erf)
FLEXC_LIBM(floor)
FLEXC_LIBM(log10)
FLEXC_LIBM(round)
FLEXC_LIBM(sin)
FLEXC_LIBM(sinh)
FLEXC_LIBM(sqrt)
FLEXC_LIBM(tan)
FLEXC_LIBM(trunc)
FLEXC_LIBM_2(atan2)
FLEXC_LIBM_2(fmod)
FLEXC_LIBM_2(pow)

#undef FLEXC_LIBM
#undef FLEXC_LIBM_F64
#undef FLEXC_LIBM_2

}  // namespace flexc

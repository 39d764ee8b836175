// Elementary functions of numbers and of vectors. The float functions that attention
// uses are polynomials without branches. All others call libm for each lane.
//
// Error bounds over all floats, in units in the last place of the result, which
// tests/codegen/test_cpp_math.py checks: exp2 1.2, exp 1.2, expm1 2, log 1, log2 2,
// log1p 3, tanh 3, erf 2. Infinities, NaN, zeros and subnormal arguments give the same
// as in libm. Without an instruction that scales by powers of two, results of exp2 and
// exp below 2^-125 are 0, because subnormal numbers are slow.
#pragma once

#include "flexc_arithmetic.h"

namespace flexc {

template <class V>
FLEXC_INLINE V absf(V x) {
    using I = typename IntegerOf<sizeof(Element<V>)>::type;
    return bits<Element<V>>(bits<I>(x) & I(~(I(1) << (sizeof(I) * 8 - 1))));
}
template <class V>
FLEXC_INLINE V copysign(V x, V y) {
    using I = typename IntegerOf<sizeof(Element<V>)>::type;
    constexpr I sign = I(1) << (sizeof(I) * 8 - 1);
    return bits<Element<V>>((bits<I>(x) & I(~sign)) | (bits<I>(y) & sign));
}

// Functions of float and of vectors of float.
namespace polynomial {

// The low bits of x plus this constant are x rounded to an integer, for |x| < 2^22.
constexpr float round_magic = 0x1.8p23f;

// Clamp x, and keep NaN.
template <class V>
FLEXC_INLINE V clamp(V x, float low, float high) {
    return smaller(V{} + high, larger(V{} + low, x));
}

template <class V>
FLEXC_INLINE V exp2(V x) {
    // The low bits become the exponent, biased for half of 2^n.
    constexpr float magic = round_magic + 126;
    const V inside = smaller(V{} + 129.0f, x);
    const V shifted = inside + magic;
    const V r = inside - (shifted - magic);
    V q = r * 3.0706646e-4f + 2.6797899e-3f;
    q = q * r + 1.92368757e-2f;
    q = q * r + 1.110066474e-1f;
    q = q * r + 4.80452954e-1f;
    q = q * r + 1.386294364f;
    q = q * r + 2.0f;
    // For smaller x the polynomial's result is wrong, and 0 replaces it.
    const V result = q * bits<float>(bits<int32_t>(shifted) << 23);
    return select(mask(x < -125.0f), V{}, result);
}

#ifdef FLEXC_AVX512
// exp2 with an instruction that scales by 2^n, also for infinite and large arguments.
FLEXC_INLINE Vec<float, 16> exp2(Vec<float, 16> x) {
    const Vec<float, 16> n = __builtin_ia32_rndscaleps_mask(x, 0, x, -1, 4);
    const Vec<float, 16> r = x - n;
    Vec<float, 16> q = r * 1.5353323e-4f + 1.33989495e-3f;
    q = q * r + 9.61843785e-3f;
    q = q * r + 5.55033237e-2f;
    q = q * r + 2.40226477e-1f;
    q = q * r + 6.93147182e-1f;
    q = q * r + 1.0f;
    return __builtin_ia32_scalefps512_mask(q, n, q, -1, 4);
}
#endif

// The common part of exp and expm1: x = n ln 2 + r, and r + r^2 q(r) = e^r - 1.
template <class V> struct ReducedExp {
    V r, q;
    Like<int32_t, V> half_power;  // bits of 2^(n - 1), as 2^n may be too large
};

template <class V>
FLEXC_INLINE ReducedExp<V> reduce_exp(V x) {
    constexpr float magic = round_magic + 126;
    const V shifted = x * 1.44269504f + magic;
    const V n = shifted - magic;
    const V r = x - n * 0.693359375f + n * 2.12194440e-4f;
    V q = r * 1.38827646e-3f + 8.36652610e-3f;
    q = q * r + 4.16671969e-2f;
    q = q * r + 1.66665435e-1f;
    q = q * r + 4.99999970e-1f;
    return {r, q, bits<int32_t>(shifted) << 23};
}

template <class V>
FLEXC_INLINE V exp(V x) {
    const ReducedExp<V> e = reduce_exp(clamp(x, -86.643f, 89.0f));
    const V q = e.r * e.r * e.q + e.r + 1.0f;
    const V result = (q + q) * bits<float>(e.half_power);
    return select(mask(x < -86.643f), V{}, result);
}

template <class V>
FLEXC_INLINE V expm1(V x) {
    const ReducedExp<V> e = reduce_exp(clamp(x, -30.0f, 89.0f));
    const V power = bits<float>(e.half_power);
    const V m = e.r * e.r * e.q + e.r;
    const V result = 2.0f * (power * m + (power - 0.5f));
    return select(mask(x == 0.0f), x, result);
}

// The common part of logarithms: log(x) = e ln 2 + log(1 + f), with 1 + f in
// [sqrt(1/2), sqrt(2)).
template <class V> struct ReducedLog {
    V f, q, e;  // log(1 + f) = f - f^2 / 2 + f^3 q
};

template <class V>
FLEXC_INLINE ReducedLog<V> reduce_log(V x) {
    using I = Like<int32_t, V>;
    const auto is_tiny = mask(x < 0x1p-126f);
    const I u = bits<int32_t>(select(is_tiny, x * 0x1p25f, x));
    const I above = u - 0x3f3504f3;  // bits of sqrt(1/2)
    const I e = (above >> 23) - select(is_tiny, I{} + 25, I{});
    const V f = bits<float>((above & 0x7fffff) + 0x3f3504f3) - 1.0f;
    V q = f * 7.0376836292e-2f - 1.1514610310e-1f;
    q = q * f + 1.1676998740e-1f;
    q = q * f - 1.2420140846e-1f;
    q = q * f + 1.4249322787e-1f;
    q = q * f - 1.6668057665e-1f;
    q = q * f + 2.0000714765e-1f;
    q = q * f - 2.4999993993e-1f;
    q = q * f + 3.3333331174e-1f;
    return {f, q, convert<float>(e)};
}

// Return the logarithm of 0, negative numbers, infinity and NaN, else `value`.
template <class V>
FLEXC_INLINE V log_special(V x, V value) {
    value = select(mask(x == 0.0f), V{} - inf_f32, value);
    value = select(mask(x < 0.0f), V{} + nan_f32, value);
    return select(mask((x != x) | (x == inf_f32)), x, value);
}

template <class V>
FLEXC_INLINE V log(V x) {
    const ReducedLog<V> l = reduce_log(x);
    const V f2 = l.f * l.f;
    const V low = l.f * f2 * l.q - l.e * 2.12194440e-4f - 0.5f * f2;
    return log_special(x, l.e * 0.693359375f + (l.f + low));
}

template <class V>
FLEXC_INLINE V log2(V x) {
    const ReducedLog<V> l = reduce_log(x);
    const V f2 = l.f * l.f;
    const V low = l.f * f2 * l.q - 0.5f * f2;
    // log2(e) is split into two parts; the first part has few bits, so that its product
    // is exact.
    const V tail = low * 1.44269504f + l.f * 0.44269504f;
    return log_special(x, l.e + (l.f + tail));
}

// Compute log(1 + x) = log(u) x / (u - 1) for u = 1 + x rounded (Kahan).
template <class V>
FLEXC_INLINE V log1p(V x) {
    const V u = 1.0f + x, d = u - 1.0f;
    const V quotient = log(u) * (x / d);
    return select(mask((d == 0.0f) | (x == inf_f32)), x, quotient);
}

// Compute tanh|x| = -u / (u + 1) for u = expm1(-2|x|) / 2.
template <class V>
FLEXC_INLINE V tanh(V x) {
    const ReducedExp<V> e = reduce_exp(larger(V{} - 30.0f, -2.0f * absf(x)));
    const V power = bits<float>(e.half_power);
    const V u = power * (e.r * e.r * e.q + e.r) + (power - 0.5f);
    return copysign(u / (u + 1.0f), x);
}

// Compute an odd polynomial near 0, else 1 - e^p(|x|).
template <class V>
FLEXC_INLINE V erf(V x) {
    const V t = absf(x), s = x * x;
    V p = t * -1.72853470e-5f + 3.83197126e-4f;
    p = p * s + (t * -3.88396438e-3f + 2.42546219e-2f);
    p = p * t - 1.06777877e-1f;
    p = p * t - 6.34846687e-1f;
    p = p * t - 1.28717512e-1f;
    p = p * t - t;
    const V far = copysign(1.0f - exp(p), x);
    V q = s * -5.96761703e-4f + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    const V near = q * x + x;
    return select(mask(t > 0.927734375f), far, near);
}

}  // namespace polynomial

// Define name(x) of vectors of either float type, lane by lane.
#define FLEXC_LANES(name)                                                         \
    template <class V, IfVector<V> = 0>                                           \
    FLEXC_INLINE V name(V x) {                                                    \
        return each_lane([](auto lane) { return name(lane); }, x);                \
    }
// Define name(x) as a polynomial for float and its vectors, as libm's function for
// double.
#define FLEXC_POLYNOMIAL(name)                                                    \
    FLEXC_INLINE float name(float x) { return polynomial::name(x); }              \
    FLEXC_INLINE double name(double x) { return __builtin_##name(x); }            \
    template <class V, IfVector<V> = 0>                                           \
    FLEXC_INLINE V name(V x) {                                                    \
        if constexpr (sizeof(Element<V>) == 4)                                    \
            return polynomial::name(x);                                           \
        else                                                                      \
            return each_lane([](double lane) { return name(lane); }, x);          \
    }
#define FLEXC_LIBM(name)                                                          \
    FLEXC_INLINE float name(float x) { return __builtin_##name##f(x); }           \
    FLEXC_INLINE double name(double x) { return __builtin_##name(x); }            \
    FLEXC_LANES(name)
#define FLEXC_LIBM_2(name)                                                        \
    FLEXC_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); } \
    FLEXC_INLINE double name(double x, double y) { return __builtin_##name(x, y); } \
    template <class V, IfVector<V> = 0>                                           \
    FLEXC_INLINE V name(V x, V y) {                                               \
        return each_lane([](auto a, auto b) { return name(a, b); }, x, y);        \
    }

FLEXC_POLYNOMIAL(exp)
FLEXC_POLYNOMIAL(exp2)
FLEXC_POLYNOMIAL(expm1)
FLEXC_POLYNOMIAL(log)
FLEXC_POLYNOMIAL(log2)
FLEXC_POLYNOMIAL(log1p)
FLEXC_POLYNOMIAL(tanh)
FLEXC_POLYNOMIAL(erf)

// Functions of scores whose weights are rounded to 16 bits, off by at most 2^-18 of the result.
template <class V> FLEXC_INLINE V near_exp2(V x) { return exp2(x); }
template <class V> FLEXC_INLINE V near_tanh(V x) { return tanh(x); }
#ifdef FLEXC_AVX512
// 2^x = 2^floor(x) p(x - floor(x)): scaling rounds its exponent down by itself.
FLEXC_INLINE Float16Lanes near_exp2(Float16Lanes x) {
    const Float16Lanes r = __builtin_ia32_reduceps512_mask_round(x, 1, x, -1, 4);
    Float16Lanes q = r * 1.342668e-2f + 5.224247e-2f;
    q = q * r + 2.412802e-1f;
    q = q * r + 6.9304484e-1f;
    q = q * r + 1.0f;
    return __builtin_ia32_scalefps512_mask(q, x, q, -1, 4);
}
// Compute a quotient of polynomials. Its inverse takes one step of Newton's method.
FLEXC_INLINE Float16Lanes near_tanh(Float16Lanes x) {
    const Float16Lanes t = polynomial::clamp(x, -7.9053111f, 7.9053111f), s = t * t;
    Float16Lanes p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * s - 8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-8f;
    p = p * s + 1.48572235717979e-5f;
    p = p * s + 6.37261928875436e-4f;
    p = p * s + 4.89352455891786e-3f;
    Float16Lanes q = s * 1.19825839466702e-6f + 1.18534705686654e-4f;
    q = q * s + 2.26843463243900e-3f;
    q = q * s + 4.89352518554385e-3f;
    Float16Lanes inverse = __builtin_ia32_rcp14ps512_mask(q, q, -1);
    inverse = inverse * (2.0f - q * inverse);
    return t * (p * inverse);
}
#endif

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
FLEXC_LIBM(floor)
FLEXC_LIBM(log10)
// rint rounds to nearest even, the rounding mode in which kernels run.
FLEXC_LIBM(rint)
FLEXC_LIBM(round)
FLEXC_LIBM(sin)
FLEXC_LIBM(sinh)
FLEXC_LIBM(sqrt)
FLEXC_LIBM(tan)
FLEXC_LIBM(trunc)
FLEXC_LIBM_2(atan2)
FLEXC_LIBM_2(fmod)
FLEXC_LIBM_2(pow)

#undef FLEXC_LANES
#undef FLEXC_POLYNOMIAL
#undef FLEXC_LIBM
#undef FLEXC_LIBM_2

template <class V>
FLEXC_INLINE V roundeven(V x) { return rint(x); }
template <class V>
FLEXC_INLINE V rsqrt(V x) { return Element<V>(1) / sqrt(x); }

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
template <class V, IfVector<V> = 0>
FLEXC_INLINE V fma(V a, V b, V c) { return a * b + c; }

}  // namespace flexc

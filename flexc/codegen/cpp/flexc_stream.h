// Products with few rows, which stream their rhs from memory.
//
// Memory bounds the speed of these products. So rows of rhs are read in place, once and
// in whole vectors, widened in registers, and prefetched some rows ahead.
#pragma once

#include "flexc_memory.h"

namespace flexc {

// Widen a vector, with one instruction where the machine has one.
template <class T, class S>
FLEXC_INLINE Vector<T> widened(Vec<S, lanes<T>> x) { return convert<T>(x); }
#if defined(__F16C__)
template <>
FLEXC_INLINE Vector<float> widened<float, half>(Vec<half, lanes<float>> x) {
#if FLEXC_VECTOR_BYTES == 64 && defined(__AVX512F__)
    typedef short Shorts __attribute__((vector_size(32)));
    return __builtin_ia32_vcvtph2ps512_mask((Shorts)x.raw, Vector<float>{}, -1, 4);
#elif FLEXC_VECTOR_BYTES == 32
    typedef short Shorts __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps256((Shorts)x.raw);
#else
    return convert<float>(x);
#endif
}
#endif

#if defined(FLEXC_AVX512) && FLEXC_VECTOR_BYTES == 64
template <>
FLEXC_INLINE Vector<float> widened<float, float8_e5m2>(Vec<float8_e5m2, lanes<float>> x) {
    typedef short Shorts __attribute__((vector_size(32)));
    typedef char Bytes __attribute__((vector_size(16)));
    const Shorts halves = (Shorts)__builtin_ia32_pmovzxbw256((Bytes)x.raw) << 8;
    return __builtin_ia32_vcvtph2ps512_mask(halves, Vector<float>{}, -1, 4);
}
// Read as fp16 numbers, whose exponents are larger by 8. The largest is no number.
template <>
FLEXC_INLINE Vector<float> widened<float, float8_e4m3>(Vec<float8_e4m3, lanes<float>> x) {
    typedef short Shorts __attribute__((vector_size(32)));
    typedef char Bytes __attribute__((vector_size(16)));
    const Shorts wide = (Shorts)__builtin_ia32_pmovsxbw256((Bytes)x.raw);
    const Shorts halves = (wide << 7) & static_cast<short>(0xbfff);
    const auto y = 256 * __builtin_ia32_vcvtph2ps512_mask(halves, Vector<float>{}, -1, 4);
    const auto size = bits<float>(bits<uint32_t>(y) & 0x7fffffff);
    return select(mask(size == 480), Vector<float>{} + nan_f32, y);
}
#endif

// Return the first Count numbers at p, followed by zeros.
template <class T, int Count = lanes<T>, class S>
FLEXC_INLINE Vector<T> read_vector(const S* p) {
    if constexpr (Count == lanes<T>) return widened<T, S>(load_vector<lanes<T>>(p));
    S some[lanes<T>];
    __builtin_memset(some, 0, sizeof(some));
    __builtin_memcpy(some, p, Count * sizeof(S));
    return widened<T, S>(load_vector<lanes<T>>(some));
}

// Prefetch a row of N numbers.
template <int N, class S>
FLEXC_INLINE void prefetch_row(const S* p) {
    constexpr int line = 64 / static_cast<int>(sizeof(S));
#pragma GCC unroll 32
    for (int j = 0; j < N; j += line) __builtin_prefetch(p + j);
}

// Return the sums of the lanes of each of L vectors. Each level adds halves of two
// neighbours, until one vector is left.
template <int D, class V, int L>
FLEXC_INLINE V sum_lanes(V (&x)[L]) {
#pragma GCC unroll 16
    for (int i = 0; i < L / D; i += 2) {
        exchange<D>(x[i], x[i + 1], typename LanesUpTo<L>::type{});
        x[i / 2] = x[i] + x[i + 1];
    }
    if constexpr (2 * D < L) return sum_lanes<2 * D>(x);
    return x[0];
}

// Compute out[i][j], the sum of lhs[i][k] * rows[j][k] over K, for R x C dot products:
// at most as many as a vector has lanes.
template <int R, int C, int K, int Pitch, int OutPitch, class T, class S>
FLEXC_INLINE void dots_block(T* out, const T* lhs, const S* const (&rows)[C]) {
    constexpr int L = lanes<T>, whole = K / L * L, rest = K - whole;
    static_assert(R * C <= L, "more dot products than a vector has numbers");
    Vector<T> sum[L] = {};
#pragma GCC unroll 4
    for (int k = 0; k < whole; k += L) {
        Vector<T> row[C];
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) row[c] = read_vector<T>(rows[c] + k);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vector<T> x = load_vector<L>(lhs + r * Pitch + k);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c) sum[r * C + c] += x * row[c];
        }
    }
    if constexpr (rest > 0) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vector<T> x = read_vector<T, rest>(lhs + r * Pitch + whole);
#pragma GCC unroll 16
            for (int c = 0; c < C; ++c)
                sum[r * C + c] += x * read_vector<T, rest>(rows[c] + whole);
        }
    }
    T total[L];
    store_vector(total, sum_lanes<1>(sum));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        __builtin_memcpy(out + r * OutPitch, total + r * C, C * sizeof(T));
}

// Compute the dot products of all rows of lhs with C rows of memory.
template <int R, int C, int M, int K, int Pitch, int OutPitch, class T, class S>
FLEXC_INLINE void dots_rows(T* out, const T* lhs, const S* const (&rows)[C]) {
    if constexpr (M >= R) {
        dots_block<R, C, K, Pitch, OutPitch>(out, lhs, rows);
        if constexpr (M > R)
            dots_rows<R, C, M - R, K, Pitch, OutPitch>(
                out + R * OutPitch, lhs + R * Pitch, rows);
    } else {
        dots_block<M, C, K, Pitch, OutPitch>(out, lhs, rows);
    }
}

// Compute out = lhs @ rhs^T for the first `count` rows of rhs. Other columns of out are
// unspecified.
template <int R, int C, int Ahead, class T, int M, int N, int K, class S>
struct StreamDots {
    static void run(
        Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count);
};
template <int R, int C, int Ahead, class T, int M, int N, int K, class S>
FLEXC_SHARED void StreamDots<R, C, Ahead, T, M, N, K, S>::run(
    Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count) {
    for (int j = 0; j < count; j += C) {
        const S* rows[C];
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
            // The last row is read again in place of rows beyond `count`.
            rows[c] = rhs + (j + c < count ? j + c : count - 1) * stride;
            if constexpr (Ahead > 0) prefetch_row<K>(rows[c] + Ahead * stride);
        }
        dots_rows<R, C, M, K, pitch<T>(K), pitch<T>(N)>(out.data + j, lhs.data, rows);
    }
}
template <int R, int C, int Ahead, class T, int M, int N, int K, class S>
FLEXC_INLINE void stream_dots(
    Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count) {
    StreamDots<R, C, Ahead, T, M, N, K, S>::run(out, lhs, rhs, stride, count);
}

// Compute sums of R rows of V vectors. The last vector has Last numbers in memory.
template <int R, int V, int Last, int Pitch, int LhsPitch, class T, class S>
FLEXC_INLINE void sums_block(
    T* out, const T* lhs, const S* rhs, int64_t stride, int count, bool onto) {
    constexpr int L = lanes<T>;
    Vector<T> sum[R][V];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v)
            sum[i][v] = onto ? load_vector<L>(out + i * Pitch + v * L) : Vector<T>{};
#pragma GCC unroll 1
    for (int k = 0; k < count; ++k, rhs += stride) {
        Vector<T> row[V];
#pragma GCC unroll 16
        for (int v = 0; v < V - 1; ++v) row[v] = read_vector<T>(rhs + v * L);
        row[V - 1] = read_vector<T, Last>(rhs + (V - 1) * L);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const Vector<T> x = splat<L>(lhs[i * LhsPitch + k]);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sum[i][v] += x * row[v];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) store_vector(out + i * Pitch + v * L, sum[i][v]);
}

// Compute sums of M rows of N numbers, a block at a time.
template <int R, int V, int M, int N, int Pitch, int LhsPitch, class T, class S>
FLEXC_INLINE void sums_blocks(
    T* out, const T* lhs, const S* rhs, int64_t stride, int count, bool onto) {
    constexpr int L = lanes<T>, rows = M < R ? M : R;
    constexpr int vectors = parts_of(N, L), some = vectors < V ? vectors : V;
    constexpr int last = some * L <= N ? L : N - (some - 1) * L;
    sums_block<rows, some, last, Pitch, LhsPitch>(out, lhs, rhs, stride, count, onto);
    if constexpr (M > R)
        sums_blocks<R, V, M - R, N, Pitch, LhsPitch>(
            out + R * Pitch, lhs + R * LhsPitch, rhs, stride, count, onto);
}
template <int R, int V, int M, int N, int Pitch, int LhsPitch, class T, class S>
FLEXC_INLINE void sums_panels(
    T* out, const T* lhs, const S* rhs, int64_t stride, int count, bool onto) {
    constexpr int width = V * lanes<T>;
    sums_blocks<R, V, M, N, Pitch, LhsPitch>(out, lhs, rhs, stride, count, onto);
    if constexpr (N > width)
        sums_panels<R, V, M, N - width, Pitch, LhsPitch>(
            out + width, lhs, rhs + width, stride, count, onto);
}

// The number of rows of rhs for one pass over all blocks, so that the rows stay in the
// cache between blocks.
constexpr int rows_at_once = 16;

// Compute out = lhs @ rhs, or out += lhs @ rhs: the sum over the first `count` rows of
// rhs.
template <int R, int V, int Ahead, class T, int M, int N, int K, class S>
struct StreamSums {
    static void run(
        Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count,
        bool onto);
};
template <int R, int V, int Ahead, class T, int M, int N, int K, class S>
FLEXC_SHARED void StreamSums<R, V, Ahead, T, M, N, K, S>::run(
    Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count,
    bool onto) {
    for (int k = 0; k < count || !onto; k += rows_at_once) {
        const int some = count - k < rows_at_once ? count - k : rows_at_once;
        if constexpr (Ahead > 0)
            for (int i = 0; i < some; ++i) prefetch_row<N>(rhs + (i + Ahead) * stride);
        sums_panels<R, V, M, N, pitch<T>(N), pitch<T>(K)>(
            out.data, lhs.data + k, rhs, stride, some, onto);
        rhs += some * stride;
        onto = true;
    }
}
template <int R, int V, int Ahead, class T, int M, int N, int K, class S>
FLEXC_INLINE void stream_sums(
    Tile<T, M, N> out, Tile<T, M, K> lhs, const S* rhs, int64_t stride, int count,
    bool onto) {
    StreamSums<R, V, Ahead, T, M, N, K, S>::run(out, lhs, rhs, stride, count, onto);
}

}  // namespace flexc

// Register-tiled matrix products of tiles of float or double.
//
// A block of R rows by V vectors of the result stays in registers while one number
// of lhs per row and V vectors of rhs are read for each step along the inner
// dimension. Six rows by two vectors fill sixteen registers, twelve by two
// thirty-two.
#pragma once

#include "flexc_tile.h"

namespace flexc {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int register_rows = 12;
#else
constexpr int register_rows = 6;
#endif

template <bool Accumulate, int R, int V, int K, int LhsPitch, int RhsPitch, class T>
FLEXC_INLINE void product_block(T* out, const T* lhs, const T* rhs) {
    Vector<T> sum[R][V];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v)
            sum[i][v] = Accumulate
                ? *reinterpret_cast<Vector<T>*>(out + i * RhsPitch + v * lanes<T>)
                : Vector<T>{};
#pragma GCC unroll 1
    for (int k = 0; k < K; ++k) {
        Vector<T> row[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v)
            row[v] = *reinterpret_cast<const Vector<T>*>(rhs + k * RhsPitch + v * lanes<T>);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const Vector<T> x = lhs[i * LhsPitch + k] - Vector<T>{};
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sum[i][v] += x * row[v];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v)
            *reinterpret_cast<Vector<T>*>(out + i * RhsPitch + v * lanes<T>) = sum[i][v];
}

// All rows of V vectors of columns.
template <bool Accumulate, int V, class T, int M, int N, int K>
FLEXC_INLINE void product_panel(
    Tile<T, M, N> out, Tile<T, M, K> lhs, Tile<T, K, N> rhs, int column) {
    constexpr int R = register_rows, whole = M / R * R, rest = M - whole;
    constexpr int lhs_pitch = pitch<T>(K), rhs_pitch = pitch<T>(N);
    for (int i = 0; i < whole; i += R)
        product_block<Accumulate, R, V, K, lhs_pitch, rhs_pitch>(
            out[i] + column, lhs[i], rhs.data + column);
    if constexpr (rest > 0)
        product_block<Accumulate, rest, V, K, lhs_pitch, rhs_pitch>(
            out[whole] + column, lhs[whole], rhs.data + column);
}

template <bool Accumulate, class T, int M, int N, int K>
__attribute__((noinline)) void product(
    Tile<T, M, N> out, Tile<T, M, K> lhs, Tile<T, K, N> rhs) {
    constexpr int width = 2 * lanes<T>, end = pitch<T>(N), whole = end / width * width;
    for (int j = 0; j < whole; j += width) product_panel<Accumulate, 2>(out, lhs, rhs, j);
    if constexpr (whole < end) product_panel<Accumulate, 1>(out, lhs, rhs, whole);
}

// out = lhs @ rhs
template <class T, int M, int N, int K>
FLEXC_INLINE void matmul(Tile<T, M, N> out, Tile<T, M, K> lhs, Tile<T, K, N> rhs) {
    product<false>(out, lhs, rhs);
}

// out += lhs @ rhs
template <class T, int M, int N, int K>
FLEXC_INLINE void dot(Tile<T, M, N> out, Tile<T, M, K> lhs, Tile<T, K, N> rhs) {
    product<true>(out, lhs, rhs);
}

}  // namespace flexc

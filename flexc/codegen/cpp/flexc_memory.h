// Moving tiles between tensors and fast memory: strides, bounds, conversions.
#pragma once

#include "flexc_tile.h"

namespace flexc {

// From storage to a tile; the tile's type holds what is stored exactly.
template <class T, class S>
FLEXC_INLINE T convert_in(S x) { return static_cast<T>(x); }
template <class T, class S>
FLEXC_INLINE void convert_out(S& to, T x) { to = static_cast<S>(x); }
// Assigning the bits, not the object, lets loops vectorise.
FLEXC_INLINE void convert_out(bfloat16& to, float x) { to.raw = bfloat16(x).raw; }
FLEXC_INLINE void convert_out(half& to, float x) { to.raw = half(x).raw; }
FLEXC_INLINE void convert_out(bfloat16& to, bfloat16 x) { to.raw = x.raw; }
FLEXC_INLINE void convert_out(half& to, half x) { to.raw = x.raw; }

FLEXC_INLINE int clip(int extent, int size) {
    return extent < 0 ? 0 : extent < size ? extent : size;
}

template <class T, class S>
FLEXC_INLINE void load_row(T* out, const S* in, int64_t stride, int count, int end) {
    if (stride == 1) {
#pragma omp simd
        for (int j = 0; j < count; ++j) convert_out(out[j], convert_in<T>(in[j]));
    } else {
        for (int j = 0; j < count; ++j) convert_out(out[j], convert_in<T>(in[j * stride]));
    }
    for (int j = count; j < end; ++j) convert_out(out[j], T(0));
}

// out[i] = in[i * stride], 0 from `extent` on
template <class T, int N, class S>
FLEXC_INLINE void load(Tile<T, N> out, const S* in, int64_t stride, int32_t extent) {
    load_row(out.data, in, stride, clip(extent, N), N);
}

// A square of a transposing load: rows of the input are columns of the tile.
template <int B, class T, class S>
FLEXC_INLINE void load_transposed_block(T* out, int out_pitch, const S* in, int64_t in_pitch) {
    T block[B][B];
#pragma GCC unroll 16
    for (int j = 0; j < B; ++j)
#pragma GCC unroll 16
        for (int i = 0; i < B; ++i) convert_out(block[i][j], convert_in<T>(in[j * in_pitch + i]));
#pragma GCC unroll 16
    for (int i = 0; i < B; ++i) __builtin_memcpy(out + i * out_pitch, block[i], sizeof(block[i]));
}

template <class T, int M, int N, class S>
FLEXC_INLINE void load_transposed(
    Tile<T, M, N> out, const S* in, int64_t in_pitch, int rows, int columns) {
    constexpr int B = 8;
    int j = 0;
    for (; j + B <= columns; j += B) {
        int i = 0;
        for (; i + B <= rows; i += B)
            load_transposed_block<B>(out[i] + j, pitch<T>(N), in + j * in_pitch + i, in_pitch);
        for (; i < rows; ++i)
            for (int jj = j; jj < j + B; ++jj)
                convert_out(out[i][jj], convert_in<T>(in[jj * in_pitch + i]));
    }
    for (; j < columns; ++j)
        for (int i = 0; i < rows; ++i)
            convert_out(out[i][j], convert_in<T>(in[j * in_pitch + i]));
}

// out[i][j] = in[i * stride_0 + j * stride_1], 0 outside the extents
template <class T, int M, int N, class S>
FLEXC_INLINE void load(
    Tile<T, M, N> out, const S* in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    const int rows = clip(extent_0, M), columns = clip(extent_1, N);
    const bool transposed = stride_0 == 1 && stride_1 != 1;
    if (transposed) load_transposed(out, in, stride_1, rows, columns);
    for (int i = 0; i < rows; ++i) {
        T* row = out[i];
        if (!transposed) load_row(row, in + i * stride_0, stride_1, columns, columns);
        for (int j = columns; j < N; ++j) convert_out(row[j], T(0));
    }
    for (int i = rows; i < M; ++i)
        for (int j = 0; j < N; ++j) convert_out(out[i][j], T(0));
}

template <class T, class S>
FLEXC_INLINE void store_row(S* out, const T* in, int64_t stride, int count) {
    if (stride == 1) {
#pragma omp simd
        for (int j = 0; j < count; ++j) convert_out(out[j], in[j]);
    } else {
        for (int j = 0; j < count; ++j) convert_out(out[j * stride], in[j]);
    }
}

// out[i * stride] = in[i] within the extent
template <class T, int N, class S>
FLEXC_INLINE void store(S* out, Tile<T, N> in, int64_t stride, int32_t extent) {
    store_row(out, in.data, stride, clip(extent, N));
}

template <class T, int M, int N, class S>
FLEXC_INLINE void store(
    S* out, Tile<T, M, N> in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    const int rows = clip(extent_0, M), columns = clip(extent_1, N);
    for (int i = 0; i < rows; ++i) store_row(out + i * stride_0, in[i], stride_1, columns);
}

// out[i * stride] += in[i]
template <class T, int N>
FLEXC_INLINE void add_to(T* out, Tile<T, N> in, int64_t stride) {
    if (stride == 1) {
#pragma omp simd
        for (int i = 0; i < N; ++i) out[i] += in.data[i];
    } else {
        for (int i = 0; i < N; ++i) out[i * stride] += in.data[i];
    }
}

template <class T, int M, int N>
FLEXC_INLINE void add_to(T* out, Tile<T, M, N> in, int64_t stride_0, int64_t stride_1) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) out[i * stride_0 + j * stride_1] += in[i][j];
}

}  // namespace flexc

// Tiles in fast memory: what holds them, and whole-tile operations.
#pragma once

#include "flexc_scalar.h"

namespace flexc {

// ---- vectors: one register of the machine ----

// A kernel that was made for a machine says how wide; any other machine runs it too.
#if !defined(FLEXC_VECTOR_BYTES)
#if defined(__AVX512F__)
#define FLEXC_VECTOR_BYTES 64
#elif defined(__AVX__)
#define FLEXC_VECTOR_BYTES 32
#else
#define FLEXC_VECTOR_BYTES 16
#endif
#endif
constexpr int vector_bytes = FLEXC_VECTOR_BYTES;

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float type __attribute__((vector_size(vector_bytes), may_alias));
};
template <> struct VectorOf<double> {
    typedef double type __attribute__((vector_size(vector_bytes), may_alias));
};
template <> struct VectorOf<int32_t> {
    typedef int32_t type __attribute__((vector_size(vector_bytes), may_alias));
};
template <> struct VectorOf<int64_t> {
    typedef int64_t type __attribute__((vector_size(vector_bytes), may_alias));
};
template <class T> using Vector = typename VectorOf<T>::type;
template <class T> constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));

// Distance between rows: whole vectors, so that products need no masks.
template <class T>
constexpr int pitch(int columns) {
    return (columns + lanes<T> - 1) / lanes<T> * lanes<T>;
}

// ---- tiles: views of a buffer; columns beyond the last hold anything ----

template <class T, int... Shape> struct Tile;

template <class T, int N>
struct Tile<T, N> {
    static constexpr int size = pitch<T>(N);
    T* data;
    FLEXC_INLINE T& operator[](int i) const { return data[i]; }
};

template <class T, int M, int N>
struct Tile<T, M, N> {
    static constexpr int size = M * pitch<T>(N);
    T* data;
    FLEXC_INLINE T* operator[](int i) const { return data + i * pitch<T>(N); }
};

// A tile with storage of its own, aligned to cache lines.
template <class T, int... Shape>
struct Buffer : Tile<T, Shape...> {
    void* allocation;
    Buffer() {
        constexpr size_t alignment = 64;
        allocation = __builtin_malloc(this->size * sizeof(T) + alignment);
        if (!allocation) __builtin_abort();
        // Moved as a pointer. From an integer, GCC may spell a buffer's address as
        // another buffer's plus the distance between the two, and then hold that
        // such a store does not write this buffer (PR 49330).
        char* start = static_cast<char*>(allocation);
        start += -reinterpret_cast<size_t>(start) & (alignment - 1);
        this->data = static_cast<T*>(__builtin_assume_aligned(start, alignment));
        __builtin_memset(this->data, 0, this->size * sizeof(T));
    }
    ~Buffer() { __builtin_free(allocation); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
};

template <class T, int... Shape, class V>
FLEXC_INLINE void fill(Tile<T, Shape...> out, V value) {
#pragma omp simd
    for (int i = 0; i < out.size; ++i) out.data[i] = static_cast<T>(value);
}

template <int N>
FLEXC_INLINE void iota(Tile<int32_t, N> out, int32_t start) {
#pragma omp simd
    for (int i = 0; i < N; ++i) out.data[i] = start + i;
}

template <class T, int... Shape>
FLEXC_INLINE void copy(Tile<T, Shape...> out, Tile<T, Shape...> in) {
    __builtin_memcpy(out.data, in.data, out.size * sizeof(T));
}

template <class T, int M, int N>
void transpose(Tile<T, N, M> out, Tile<T, M, N> in) {
    for (int j = 0; j < N; ++j)
        for (int i = 0; i < M; ++i) out[j][i] = in[i][j];
}

// ---- reductions ----

template <class T> constexpr T largest = T(__builtin_inff());
template <> constexpr int32_t largest<int32_t> = __INT32_MAX__;
template <> constexpr int64_t largest<int64_t> = __INT64_MAX__;

struct Max {
    template <class T> static FLEXC_INLINE T combine(T a, T b) { return a > b ? a : b; }
    template <class T> static constexpr T identity = static_cast<T>(-largest<T> - 1);
};
struct Min {
    template <class T> static FLEXC_INLINE T combine(T a, T b) { return a < b ? a : b; }
    template <class T> static constexpr T identity = largest<T>;
};
struct Sum {
    template <class T> static FLEXC_INLINE T combine(T a, T b) { return a + b; }
    template <class T> static constexpr T identity = 0;
};

template <class Kind, class T>
FLEXC_INLINE T combine_lanes(Vector<T> v) {
    T part[lanes<T>];
    __builtin_memcpy(part, &v, sizeof(v));
#pragma GCC unroll 4
    for (int width = lanes<T> / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i)
            part[i] = Kind::template combine<T>(part[i], part[i + width]);
    return part[0];
}

// One row to one number.
template <class Kind, int N, class T>
FLEXC_INLINE T reduce_row(const T* row) {
    constexpr int whole = N / lanes<T>;
    T result = Kind::template identity<T>;
    if (whole > 0) {
        Vector<T> v = *reinterpret_cast<const Vector<T>*>(row);
#pragma GCC unroll 4
        for (int i = 1; i < whole; ++i)
            v = Kind::combine(v, reinterpret_cast<const Vector<T>*>(row)[i]);
        result = combine_lanes<Kind, T>(v);
    }
    for (int j = whole * lanes<T>; j < N; ++j)
        result = Kind::template combine<T>(result, row[j]);
    return result;
}

// Combine each row: one number per row.
template <class Kind, class T, int M, int N>
FLEXC_INLINE void reduce_rows(Tile<T, M> out, Tile<T, M, N> in) {
    for (int i = 0; i < M; ++i) out[i] = reduce_row<Kind, N>(in[i]);
}

// Combine each column: one number per column.
template <class Kind, class T, int M, int N>
FLEXC_INLINE void reduce_columns(Tile<T, N> out, Tile<T, M, N> in) {
    for (int j = 0; j < N; ++j) out[j] = in[0][j];
    for (int i = 1; i < M; ++i) {
        const T* row = in[i];
#pragma omp simd
        for (int j = 0; j < N; ++j) out.data[j] = Kind::template combine<T>(out.data[j], row[j]);
    }
}

// Sum each diagonal: out[c] is the sum of all in[i][j] with i - j + N = c.
template <class T, int L, int M, int N>
FLEXC_INLINE void diagonals(Tile<T, L> out, Tile<T, M, N> in) {
    static_assert(L == M + N, "a tile has as many diagonals as rows and columns");
    fill(out, T(0));
    for (int i = 0; i < M; ++i) {
        const T* row = in[i];
#pragma omp simd
        for (int j = 0; j < N; ++j) out.data[i + N - j] += row[j];
    }
}

}  // namespace flexc

// Tiles in fast memory: their buffers, and operations on whole tiles.
#pragma once

#include "flexc_arithmetic.h"

namespace flexc {

// One register of the machine.
template <class T> using Vector = Vec<T, lanes<T>>;

// The distance between rows: whole vectors, also of other element types in the same
// maps, so that neither products nor maps need masks.
template <class T>
constexpr int pitch(int columns) {
    return parts_of(columns, lanes<float>) * lanes<float>;
}

// Maps take a few vectors of each row at a time, so that their computations overlap.
template <int N, int L> constexpr int vectors_at_once = parts_of(N, L) % 2 ? 1 : 2;
template <int N, int L> constexpr int columns_at_once = vectors_at_once<N, L> * L;

// A tile is a view of a buffer. Columns beyond the last are unspecified.

template <class T, int... Shape> struct Tile;

template <class T, int N>
struct Tile<T, N> {
    static constexpr int size = pitch<T>(N), allocated = size;
    T* data;
    FLEXC_INLINE T& operator[](int i) const { return data[i]; }
};

// Buffers of matrices have memory for a multiple of 16 rows: a tile register of a matrix
// unit has 16.
constexpr int room_rows = 16;

template <class T, int M, int N>
struct Tile<T, M, N> {
    static constexpr int size = M * pitch<T>(N);
    static constexpr int allocated = parts_of(M, room_rows) * room_rows * pitch<T>(N);
    T* data;
    FLEXC_INLINE T* operator[](int i) const { return data + i * pitch<T>(N); }
};

// A tile with storage of its own, aligned to cache lines.
template <class T, int... Shape>
struct Buffer : Tile<T, Shape...> {
    void* allocation;
    Buffer() {
        constexpr size_t alignment = 64;
        allocation = __builtin_malloc(this->allocated * sizeof(T) + alignment);
        if (!allocation) __builtin_abort();
        // Move the pointer itself. From an integer, GCC may express a buffer's address
        // as another buffer's plus the distance between the two. GCC then assumes that
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
    for (int i = 0; i < N; i += lanes<int32_t>)
        store_vector(out.data + i, lane_numbers<int32_t>() + (start + i));
}

template <class T, int... Shape>
FLEXC_INLINE void copy(Tile<T, Shape...> out, Tile<T, Shape...> in) {
    __builtin_memcpy(out.data, in.data, out.size * sizeof(T));
}

// Let two tiles take each other's place.
template <class T, int... Shape>
FLEXC_INLINE void exchange(Buffer<T, Shape...>& a, Buffer<T, Shape...>& b) {
    T* data = a.data;
    a.data = b.data;
    b.data = data;
}

template <class T> constexpr T largest = T(__builtin_inff());
template <> constexpr int8_t largest<int8_t> = __SCHAR_MAX__;
template <> constexpr int16_t largest<int16_t> = __SHRT_MAX__;
template <> constexpr int32_t largest<int32_t> = __INT32_MAX__;
template <> constexpr int64_t largest<int64_t> = __INT64_MAX__;

// Kinds of reductions, of numbers and of vectors.
struct Max {
    template <class V> static FLEXC_INLINE V combine(V a, V b) { return larger(a, b); }
    template <class T> static constexpr T identity = static_cast<T>(-largest<T> - 1);
};
struct Min {
    template <class V> static FLEXC_INLINE V combine(V a, V b) { return smaller(a, b); }
    template <class T> static constexpr T identity = largest<T>;
};
struct Sum {
    template <class V> static FLEXC_INLINE V combine(V a, V b) { return a + b; }
    template <class T> static constexpr T identity = 0;
};

template <class Kind, class T, int L>
FLEXC_INLINE T combine_lanes(Vec<T, L> v) {
    Vec<T, L / 2> half[2];
    __builtin_memcpy(half, &v, sizeof(v));
    if constexpr (L == 2)
        return Kind::template combine<T>(half[0][0], half[1][0]);
    else
        return combine_lanes<Kind, T, L / 2>(Kind::combine(half[0], half[1]));
}

// The lanes of the widest vector with at most N.
template <class T, int N, int L = lanes<T>>
constexpr int lanes_within = L <= N ? L : lanes_within<T, N, L / 2>;
template <class T, int N> constexpr int lanes_within<T, N, 1> = 1;

// Reduce one row to one number.
template <class Kind, int N, class T>
FLEXC_INLINE T reduce_row(const T* row) {
    constexpr int L = lanes_within<T, N>, whole = L > 1 ? N / L : 0;
    T result = Kind::template identity<T>;
    if constexpr (whole > 0) {
        Vec<T, L> v = load_vector<L>(row);
#pragma GCC unroll 4
        for (int i = 1; i < whole; ++i) v = Kind::combine(v, load_vector<L>(row + i * L));
        result = combine_lanes<Kind, T, L>(v);
    }
    for (int j = whole * L; j < N; ++j) result = Kind::template combine<T>(result, row[j]);
    return result;
}

// Reduce each row to one number.
template <class Kind, class T, int M, int N>
FLEXC_INLINE void reduce_rows(Tile<T, M> out, Tile<T, M, N> in) {
    for (int i = 0; i < M; ++i) out[i] = reduce_row<Kind, N>(in[i]);
}

// Reduce the first `count` columns of each row.
template <class Kind, class T, int M, int N>
FLEXC_INLINE void reduce_rows(Tile<T, M> out, Tile<T, M, N> in, int count) {
    constexpr int L = lanes<T>;
    for (int i = 0; i < M; ++i) {
        T result = Kind::template identity<T>;
        if constexpr (sizeof(T) >= 4) {
            const Vector<T> none = splat<L>(result);
            Vector<T> v = none;
            int j = 0;
            for (; j + L <= count; j += L) v = Kind::combine(v, load_vector<L>(in[i] + j));
            const auto inside = mask(lane_numbers<int32_t, L>() < count - j);
            if (j < count) v = Kind::combine(v, select(inside, load_vector<L>(in[i] + j), none));
            result = combine_lanes<Kind, T, L>(v);
        } else {
            for (int j = 0; j < count; ++j) result = Kind::combine(result, in[i][j]);
        }
        out[i] = result;
    }
}

// Reduce the first `count` rows of each column to one number.
template <class Kind, class T, int M, int N>
FLEXC_INLINE void reduce_columns(Tile<T, N> out, Tile<T, M, N> in, int count = M) {
    // Rows have room for this many lanes: vectors of small numbers do not fill a
    // register.
    constexpr int L = sizeof(T) > 4 ? lanes<double> : lanes<float>;
    constexpr int together = vectors_at_once<N, L>;
    for (int j = 0; j < N; j += together * L) {
        Vec<T, L> v[together];
#pragma GCC unroll 2
        for (int k = 0; k < together; ++k) v[k] = load_vector<L>(in[0] + j + k * L);
        int i = 1;
        // Four rows at a time wait for one combination with the rows before.
        for (; i + 4 <= count; i += 4)
#pragma GCC unroll 2
            for (int k = 0; k < together; ++k) {
                Vec<T, L> some[4];
#pragma GCC unroll 4
                for (int n = 0; n < 4; ++n) some[n] = load_vector<L>(in[i + n] + j + k * L);
                const Vec<T, L> first = Kind::combine(some[0], some[1]);
                v[k] = Kind::combine(v[k], Kind::combine(first, Kind::combine(some[2], some[3])));
            }
        for (; i < count; ++i)
#pragma GCC unroll 2
            for (int k = 0; k < together; ++k)
                v[k] = Kind::combine(v[k], load_vector<L>(in[i] + j + k * L));
#pragma GCC unroll 2
        for (int k = 0; k < together; ++k) store_vector(out.data + j + k * L, v[k]);
    }
}

// Sum each row: out[i][j] is the sum of in[i][0] to in[i][j].
template <class T, int M, int N>
FLEXC_INLINE void scan_rows(Tile<T, M, N> out, Tile<T, M, N> in) {
    for (int i = 0; i < M; ++i) {
        T sum = 0;
        for (int j = 0; j < N; ++j) out[i][j] = sum += in[i][j];
    }
}

// Find the smallest range of the first `count` flags that contains all set flags.
template <int N>
FLEXC_INLINE void live_range(
    int32_t& first, int32_t& length, Tile<int8_t, N> flags, int count = N) {
    int begin = 0, end = count;
    // Look at eight flags at a time: often none is set.
    const auto eight = [&](int at) FLEXC_EACH {
        uint64_t some;
        __builtin_memcpy(&some, flags.data + at, sizeof(some));
        return some;
    };
    while (begin + 8 <= end && !eight(begin)) begin += 8;
    while (begin + 8 <= end && !eight(end - 8)) end -= 8;
    while (begin < end && !flags[begin]) ++begin;
    while (begin < end && !flags[end - 1]) --end;
    length = end - begin;
    first = length ? begin : 0;
}

// Sum each diagonal: out[c] is the sum of all in[i][j] with i - j + N = c, j < count.
template <class T, int L, int M, int N>
FLEXC_INLINE void diagonals(Tile<T, L> out, Tile<T, M, N> in, int count = N) {
    static_assert(L == M + N, "a tile has as many diagonals as rows and columns");
    fill(out, T(0));
    for (int i = 0; i < M; ++i) {
        const T* row = in[i];
#pragma omp simd
        for (int j = 0; j < count; ++j) out.data[i + N - j] += row[j];
    }
}

// Sum each diagonal of the transpose: out[c] is the sum of all in[j][i] with i - j + N
// = c.
template <class T, int L, int N, int M>
FLEXC_INLINE void transposed_diagonals(Tile<T, L> out, Tile<T, N, M> in, int count = N) {
    static_assert(L == M + N, "a tile has as many diagonals as rows and columns");
    fill(out, T(0));
    for (int j = 0; j < count; ++j) {
        T* first = out.data + N - j;
#pragma omp simd
        for (int i = 0; i < M; ++i) first[i] += in[j][i];
    }
}

}  // namespace flexc

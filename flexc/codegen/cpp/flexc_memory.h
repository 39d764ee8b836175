// Moves of tiles between tensors and fast memory: strides, bounds, conversions.
#pragma once

#include "flexc_tile.h"

namespace flexc {

// The count of numbers of types T and S that are moved at a time. No vector is wider
// than a register.
template <class T, class S>
constexpr int moved_lanes = sizeof(T) == 8 || sizeof(S) == 8 ? lanes<double> : lanes<float>;

FLEXC_INLINE int clip(int extent, int size) {
    return extent < 0 ? 0 : extent < size ? extent : size;
}

// Return where a block of L begins. The last block overlaps the one before; there must
// be at least L elements.
FLEXC_INLINE int block_start(int at, int end, int L) { return at + L <= end ? at : end - L; }

// Convert `count` numbers. The last vector overlaps the one before.
template <class T, class S>
FLEXC_INLINE void move_row(T* out, const S* in, int count) {
    constexpr int L = moved_lanes<T, S>;
    for (int at = 0; count >= L && at < count; at += L) {
        const int j = block_start(at, count, L);
        store_vector(out + j, convert<T>(load_vector<L>(in + j)));
    }
    for (int j = 0; count < L && j < count; ++j) out[j] = convert<T>(in[j]);
}

template <int... I> struct Lanes {};
template <int N, int... I> struct LanesUpTo : LanesUpTo<N - 1, N - 1, I...> {};
template <int... I> struct LanesUpTo<0, I...> { using type = Lanes<I...>; };

// Exchange b's even blocks of D lanes with a's odd blocks.
template <int D, class V, int... I>
FLEXC_INLINE void exchange(V& a, V& b, Lanes<I...>) {
    constexpr int L = sizeof...(I);
    const V first = __builtin_shufflevector(a, b, (I & D ? L + I - D : I)...);
    b = __builtin_shufflevector(a, b, (I & D ? L + I : I + D)...);
    a = first;
}

// Transpose a square: the 2 x 2 blocks of squares of D, 2 D, ... lanes.
template <int D, class V, int L>
FLEXC_INLINE void transpose_square(V (&rows)[L]) {
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
        if (!(i & D)) exchange<D>(rows[i], rows[i + D], typename LanesUpTo<L>::type{});
    if constexpr (2 * D < L) transpose_square<2 * D>(rows);
}

// Compute to[i * to_pitch + j] = from[j * from_pitch + i] for L x L numbers, by way of
// type W. Only `read` rows are read, the others are 0. Only `written` rows are written.
// Loads and stores of the same types share one function.
template <int L, class W, class T, class S>
__attribute__((noinline)) void move_square(
    T* to, int64_t to_pitch, const S* from, int64_t from_pitch, int read, int written) {
    Vec<W, L> rows[L];
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j)
        rows[j] = j < read ? convert<W>(load_vector<L>(from + j * from_pitch)) : Vec<W, L>{};
    transpose_square<1>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
        if (i < written) store_vector(to + i * to_pitch, convert<T>(rows[i]));
}

// Return the rows of `count` keys from `start` on, whose pages of Size keys a table
// lists, and set the step from row to row. Rows in several pages are copied.
template <int Columns, int Size, class T>
FLEXC_INLINE const T* collect(
    T* copy, int64_t& step, const T* from, const int32_t* table, int64_t page_stride,
    int64_t row_stride, int64_t column_stride, int32_t pages, int32_t start, int32_t count) {
    const auto place = [&](int32_t row) {
        const int32_t page = table[row / Size];
        const int64_t existing = page < 0 ? 0 : page < pages ? page : pages - 1;
        return from + existing * page_stride + row % Size * row_stride;
    };
    const bool adjacent = column_stride == 1;
    if (adjacent && count > 0 && start / Size == (start + count - 1) / Size) {
        step = row_stride;
        return place(start);
    }
    step = Columns;
    for (int32_t i = 0; i < count; ++i) {
        const T* row = place(start + i);
        if (adjacent)
            __builtin_memcpy(copy + i * Columns, row, Columns * sizeof(T));
        else
            for (int j = 0; j < Columns; ++j) copy[i * Columns + j] = row[j * column_stride];
    }
    return copy;
}

// Copies of a head's rows that lie apart in memory, near each other, for programs of a
// thread that read them again. Memory that a kernel reads does not change while it runs.
template <class T, int Columns>
class NearRows {
    // An odd number of cache lines: a block's rows fall on all sets of a cache.
    static constexpr int line = 64 / int(sizeof(T));
    static constexpr int pitch = (parts_of(Columns, line) | 1) * line;
    static constexpr int room = (9 << 18) / (pitch * int(sizeof(T)));
    enum State : uint8_t { unread, once, copied };
    const bool is_repeated;
    const T* head = nullptr;
    void* allocation = nullptr;
    int64_t seen = 0, capacity = 0;
    State states[room];

    // True if rows lie apart, or a block's rows fall on few sets of a cache.
    static bool is_far(int64_t stride) {
        return stride >= 2 * Columns || (stride > 0 && stride * sizeof(T) % 512 == 0);
    }

    static bool has(const State* states, State state, int count) {
        return __builtin_memchr(states, state, count);
    }

    // Return the place of a row's copy; there is room for the rows that were read.
    T* near(int64_t row, int64_t end) {
        if (end > capacity) {
            __builtin_free(allocation);
            capacity = seen;
            allocation = __builtin_malloc(capacity * pitch * sizeof(T) + 64);
            if (!allocation) __builtin_abort();
            for (State& state : states)
                if (state == copied) state = once;
        }
        char* start = static_cast<char*>(allocation);
        start += -reinterpret_cast<size_t>(start) & 63;
        return reinterpret_cast<T*>(start) + row * pitch;
    }

public:
    // A thread is expected to read rows often if `is_repeated`.
    NearRows(bool is_repeated) : is_repeated(is_repeated) {}
    ~NearRows() { __builtin_free(allocation); }
    NearRows(const NearRows&) = delete;

    // Return `count` rows from `start` on, and set the step from row to row. Rows are
    // copied as soon as all of them are read again, and if there is room.
    __attribute__((noinline)) const T* find(
        int64_t& step, const T* from, int64_t start, int64_t stride, int32_t count) {
        const T* const place = from + start * stride;
        step = stride;
        if (!is_repeated || !is_far(stride) || count <= 0 || start + count > room) return place;
        if (from != head) __builtin_memset(states, unread, room);
        head = from;
        State* const state = states + start;
        if (has(state, unread, count)) {
            seen = seen < start + count ? start + count : seen;
            for (int i = 0; i < count; ++i)
                if (state[i] == unread) state[i] = once;
            return place;
        }
        T* const rows = near(start, start + count);
        if (has(state, once, count)) {
            for (int i = 0; i < count; ++i)
                if (state[i] == once)
                    __builtin_memcpy(rows + i * pitch, place + i * stride, Columns * sizeof(T));
            __builtin_memset(state, copied, count);
        }
        step = pitch;
        return rows;
    }
};

// Compute out[i] = in[i * stride], 0 from `extent` on.
template <class T, int N, class S>
FLEXC_INLINE void load(Tile<T, N> out, const S* in, int64_t stride, int32_t extent) {
    const int count = clip(extent, N);
    if (stride == 1)
        move_row(out.data, in, count);
    else
        for (int j = 0; j < count; ++j) out[j] = convert<T>(in[j * stride]);
    for (int j = count; j < N; ++j) out[j] = T(0);
}

// Compute out[i][j] = in[i + j * in_pitch] within rows and columns, 0 in columns
// beyond.
template <class T, int M, int N, class S>
struct LoadTransposed {
    static void run(Tile<T, M, N> out, const S* in, int64_t in_pitch, int rows, int columns);
};
template <class T, int M, int N, class S>
FLEXC_SHARED void LoadTransposed<T, M, N, S>::run(
    Tile<T, M, N> out, const S* in, int64_t in_pitch, int rows, int columns) {
    constexpr int L = moved_lanes<T, S>, to_pitch = pitch<T>(N);
    for (int j = 0; j < N; j += L) {
        const int read = clip(columns - j, L);
        for (int at = 0; rows >= L && at < rows; at += L) {
            const int i = block_start(at, rows, L);
            move_square<L, T>(out[i] + j, to_pitch, in + j * in_pitch + i, in_pitch, read, L);
        }
        for (int i = 0; rows < L && i < rows; ++i)
            for (int lane = 0; lane < L; ++lane)
                out[i][j + lane] = lane < read ? convert<T>(in[(j + lane) * in_pitch + i]) : T(0);
    }
}

// Compute out[i][j] = in[i * stride_0 + j * stride_1], 0 outside the extents.
template <class T, int M, int N, class S>
FLEXC_INLINE void load(
    Tile<T, M, N> out, const S* in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    const int rows = clip(extent_0, M), columns = clip(extent_1, N);
    constexpr bool transposes = sizeof(T) >= 4 || is_same<T, bfloat16>;
    const bool transposed = transposes && stride_0 == 1 && stride_1 != 1;
    if constexpr (transposes)
        if (transposed) LoadTransposed<T, M, N, S>::run(out, in, stride_1, rows, columns);
    for (int i = 0; !transposed && i < rows; ++i) {
        T* row = out[i];
        const S* from = in + i * stride_0;
        if (stride_1 == 1)
            move_row(row, from, columns);
        else
            for (int j = 0; j < columns; ++j) row[j] = convert<T>(from[j * stride_1]);
        for (int j = columns; j < N; ++j) row[j] = T(0);
    }
    for (int i = rows; i < M; ++i)
        for (int j = 0; j < N; ++j) out[i][j] = T(0);
}

// Transpose a tile into another tile.
template <class T, int M, int N>
FLEXC_INLINE void transpose(Tile<T, N, M> out, Tile<T, M, N> in) {
    if constexpr (sizeof(T) >= 4)
        LoadTransposed<T, N, M, T>::run(out, in.data, pitch<T>(N), N, M);
    else
        for (int j = 0; j < N; ++j)
            for (int i = 0; i < M; ++i) out[j][i] = in[i][j];
}

// Compute out[i * stride] = in[i] within the extent.
template <class T, int N, class S>
FLEXC_INLINE void store(S* out, Tile<T, N> in, int64_t stride, int32_t extent) {
    const int count = clip(extent, N);
    if (stride == 1)
        move_row(out, in.data, count);
    else
        for (int j = 0; j < count; ++j) out[j * stride] = convert<S>(in[j]);
}

// Compute out[i + j * out_pitch] = in[i][j] within rows and columns.
template <class T, int M, int N, class S>
struct StoreTransposed {
    static void run(S* out, Tile<T, M, N> in, int64_t out_pitch, int rows, int columns);
};
template <class T, int M, int N, class S>
FLEXC_SHARED void StoreTransposed<T, M, N, S>::run(
    S* out, Tile<T, M, N> in, int64_t out_pitch, int rows, int columns) {
    constexpr int L = moved_lanes<T, S>, from_pitch = pitch<T>(N);
    for (int j = 0; j < columns; j += L) {
        const int written = clip(columns - j, L);
        S* to = out + j * out_pitch;
        for (int at = 0; rows >= L && at < rows; at += L) {
            const int i = block_start(at, rows, L);
            move_square<L, T>(to + i, out_pitch, in[i] + j, from_pitch, L, written);
        }
        for (int i = 0; rows < L && i < rows; ++i)
            for (int lane = 0; lane < written; ++lane)
                to[lane * out_pitch + i] = convert<S>(in[i][j + lane]);
    }
}

template <class T, int M, int N, class S>
FLEXC_INLINE void store(
    S* out, Tile<T, M, N> in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    const int rows = clip(extent_0, M), columns = clip(extent_1, N);
    if constexpr (sizeof(T) >= 4)
        if (stride_0 == 1 && stride_1 != 1)
            return StoreTransposed<T, M, N, S>::run(out, in, stride_1, rows, columns);
    for (int i = 0; i < rows; ++i) {
        S* to = out + i * stride_0;
        if (stride_1 == 1)
            move_row(to, in[i], columns);
        else
            for (int j = 0; j < columns; ++j) to[j * stride_1] = convert<S>(in[i][j]);
    }
}

// Compute out[offsets[i]] = in[i] where the mask is set.
template <class T, int N>
FLEXC_INLINE void scatter(
    T* out, Tile<T, N> in, Tile<int32_t, N> offsets, Tile<int8_t, N> mask) {
    for (int i = 0; i < N; ++i)
        if (mask[i]) out[offsets[i]] = in[i];
}

template <class T, int M, int N>
FLEXC_INLINE void scatter(
    T* out, Tile<T, M, N> in, Tile<int32_t, M, N> offsets, Tile<int8_t, M, N> mask) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j)
            if (mask[i][j]) out[offsets[i][j]] = in[i][j];
}

// Compute out[i * stride] += in[i] for the first `count` elements.
template <class T, int N>
FLEXC_INLINE void add_to(T* out, Tile<T, N> in, int64_t stride, int32_t count = N) {
    if (stride == 1) {
#pragma omp simd
        for (int i = 0; i < count; ++i) out[i] += in.data[i];
    } else {
        for (int i = 0; i < count; ++i) out[i * stride] += in.data[i];
    }
}

// Compute out[i * stride_0 + j * stride_1] += in[i][j] for the first `rows` rows.
template <class T, int M, int N>
FLEXC_INLINE void add_to(
    T* out, Tile<T, M, N> in, int64_t stride_0, int64_t stride_1, int32_t rows = M) {
    for (int i = 0; i < rows; ++i) {
        T* row = out + i * stride_0;
        if (stride_1 == 1) {
#pragma omp simd
            for (int j = 0; j < N; ++j) row[j] += in[i][j];
        } else {
            for (int j = 0; j < N; ++j) row[j * stride_1] += in[i][j];
        }
    }
}

}  // namespace flexc

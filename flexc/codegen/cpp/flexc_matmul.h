// Matrix products in registers.
//
// A block of R rows by V vectors of the result stays in registers. Each step along the
// inner dimension reads V vectors of rhs, and one number of lhs for each row. Numbers
// of lhs are read in place and widened: no operand is copied, transposed or packed. A
// step of a packed product takes pairs in place of numbers.
#pragma once

#include "flexc_pairs.h"

namespace flexc {

// A number that is part of a type.
template <int64_t N> struct Fixed {
    FLEXC_INLINE constexpr operator int64_t() const { return N; }
};
template <int64_t N> constexpr Fixed<N> fixed{};

// An lhs whose element (i, k) is data[i * row + k * inner]. The elements at the
// distance `next` are read soon.
template <class S, class Row, class Inner, class Next>
struct Strided {
    const S* data;
    Row row;
    Inner inner;
    Next next;
    FLEXC_INLINE const S* at(int64_t i) const { return data + i * row; }
    FLEXC_INLINE Strided from(int64_t i) const { return {at(i), row, inner, next}; }

    static constexpr bool is_followed = !is_same<Next, Fixed<0>>;
    // Prefetch the elements at the distance `next` from some rows of adjacent elements.
    FLEXC_INLINE void prefetch_rows(int rows, int count) const {
        if constexpr (is_followed && is_same<Inner, Fixed<1>>)
            for (int i = 0; i < rows && next != 0; ++i)
                for (int k = 0; k < count; k += 64 / int(sizeof(S)))
                    __builtin_prefetch(at(i) + next + k, 0, 2);
    }
    // Prefetch the elements at the distance `next` from a column of adjacent elements.
    FLEXC_INLINE void prefetch_column() const {
        if constexpr (is_followed && is_same<Row, Fixed<1>>)
            __builtin_prefetch(data + next, 0, 2);
    }
};
template <class S, class Row, class Inner, class Next = Fixed<0>>
FLEXC_INLINE Strided<S, Row, Inner, Next> strided(
    const S* data, Row row, Inner inner, Next next = {}) {
    return {data, row, inner, next};
}
// An lhs that is a tile of K columns.
template <class T, int K> using TileOperand = Strided<T, Fixed<pitch<T>(K)>, Fixed<1>, Fixed<0>>;
template <class T, int M, int K>
FLEXC_INLINE TileOperand<T, K> strided(Tile<T, M, K> tile) {
    return strided(static_cast<const T*>(tile.data), fixed<pitch<T>(K)>, fixed<1>);
}

// An lhs of kept blocks. Elements beyond the counted columns are 0 up to the next block.
template <int M>
struct KeptOperand {
    const Tile<bfloat16, M, kept_columns>* blocks;
    int first;
    FLEXC_INLINE KeptOperand from(int i) const { return {blocks, first + i}; }
    FLEXC_INLINE auto block(int k) const { return strided(blocks[k]).from(first); }
    FLEXC_INLINE void prefetch_rows(int, int) const {}
};
template <class L> constexpr bool is_kept = false;
template <int M> constexpr bool is_kept<KeptOperand<M>> = true;
template <int M, int N>
FLEXC_INLINE KeptOperand<M> strided(const Kept<bfloat16, M, N>& tile) {
    return {tile.blocks, 0};
}

// Broadcast a number to all lanes.
template <class T, class S>
FLEXC_INLINE Vector<T> spread(const S* x) {
    return splat<lanes<T>>(convert<T>(*x));
}
template <>
FLEXC_INLINE Pairs spread<bfloat16x2>(const bfloat16* x) { return spread_pair(x); }
// This version uses vector units only.
template <>
FLEXC_INLINE Vector<float> spread<float>(const bfloat16* x) {
    const auto twice = __builtin_bit_cast(Vector<int32_t>, splat<lanes<uint16_t>>(x->raw));
    return bits<float>(twice & -0x10000);
}
#if defined(__F16C__)
template <>
FLEXC_INLINE Vector<float> spread<float>(const half* x) {
#if FLEXC_VECTOR_BYTES == 64 && defined(__AVX512F__)
    typedef short Shorts __attribute__((vector_size(32)));
    const Shorts all = static_cast<short>(x->raw) - Shorts{};
    return __builtin_ia32_vcvtph2ps512_mask(all, Vector<float>{}, -1, 4);
#elif FLEXC_VECTOR_BYTES == 32
    typedef short Shorts __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps256(static_cast<short>(x->raw) - Shorts{});
#else
    typedef short Shorts __attribute__((vector_size(16)));
    return __builtin_ia32_vcvtph2ps(Shorts{static_cast<short>(x->raw)})[0] - Vector<float>{};
#endif
}
#endif

template <class V>
FLEXC_INLINE V multiply_add(V x, V a, V b) { return x + a * b; }

// Broadcast one of two adjacent numbers. One load and one operation suffice, as for a
// float. The numbers are loaded as a float, because GCC would shift an integer before
// it broadcasts the integer.
FLEXC_INLINE Vector<float> spread_of_two(const bfloat16* two, bool second) {
    float both;
    __builtin_memcpy(&both, two, sizeof(both));
    const Vector<int32_t> all = bits<int32_t>(splat<lanes<float>>(both));
    return bits<float>(second ? all & -0x10000 : all << 16);
}

// The element type of a product's result.
template <class T> struct SumOf { using type = T; };
template <> struct SumOf<bfloat16x2> { using type = float; };

// A result. In a tile the pitch of rows is part of the type, in memory it is any
// number.
template <class T, class Pitch>
struct Result {
    T* data;
    Pitch pitch;
    FLEXC_INLINE T* at(int64_t i) const { return data + i * pitch; }
    FLEXC_INLINE Result from(int64_t i) const { return {at(i), pitch}; }
    FLEXC_INLINE Result after(int columns) const { return {data + columns, pitch}; }
};
template <class T, int N> using TileResult = Result<T, Fixed<pitch<T>(N)>>;
template <class T, int M, int N>
FLEXC_INLINE TileResult<T, N> result(Tile<T, M, N> tile) {
    return {tile.data, {}};
}

// Broadcast element (i, 0) of an lhs block of R rows.
template <class T, int R, class S, class Row, class Inner, class Next>
FLEXC_INLINE Vector<T> spread_row(Strided<S, Row, Inner, Next> lhs, int i) {
    if constexpr (is_same<T, float> && is_same<S, bfloat16> && is_same<Row, Fixed<1>>)
        if (i % 2 || i + 1 < R) return spread_of_two(lhs.at(i - i % 2), i % 2);
    return spread<T>(lhs.at(i));
}

// Add the products of one step to R rows of V vectors.
template <class T, int R, int V, class A, class Spread>
FLEXC_INLINE void product_step(A (&sum)[R][V], const T* rhs, Spread spread) {
    Vector<T> row[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) row[v] = load_vector<lanes<T>>(rhs + v * lanes<T>);
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) {
        const Vector<T> x = spread(i);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[i][v] = multiply_add(sum[i][v], x, row[v]);
    }
}

// Compute a block of R rows of V vectors, a sum over `inner` columns of lhs.
template <bool Accumulate, int R, int V, int Pitch, class T, class O, class L>
FLEXC_INLINE void product_block(O out, L lhs, const T* rhs, int inner) {
    constexpr int depth = is_same<T, bfloat16x2> ? 2 : 1;
    lhs.prefetch_rows(R, inner);
    Vector<typename SumOf<T>::type> sum[R][V];
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
            sum[i][v] = Accumulate
                ? load_vector<lanes<T>>(out.at(i) + v * lanes<T>)
                : Vector<typename SumOf<T>::type>{};
    const auto add = [&](auto terms, int count) FLEXC_EACH {
#pragma GCC unroll 1
        for (int k = 0; k + depth <= count; k += depth) {
            product_step(sum, rhs, [=](int i) { return spread_row<T, R>(terms, i); });
            terms.prefetch_column();
            terms.data += depth * terms.inner;
            rhs += Pitch;
        }
        if constexpr (depth == 2)
            if (count % 2)
                product_step(sum, rhs, [=](int i) { return spread_pair(terms.at(i), false); });
    };
    if constexpr (is_kept<L>) {
        for (int k = 0; k * kept_columns < inner; ++k) {
            const int left = inner - k * kept_columns;
            add(lhs.block(k), left < kept_columns ? left : kept_columns);
        }
    } else {
        add(lhs, inner);
    }
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
            store_vector(out.at(i) + v * lanes<T>, sum[i][v]);
}

// Compute M rows. A block with fewer than 8 sums waits for its own additions. So a
// small rest is combined with the block before it, and the rows are divided evenly.
template <bool Accumulate, int R, int V, int Pitch, class T, class O, class L, int64_t M>
FLEXC_INLINE void product_rows(O out, L lhs, const T* rhs, Fixed<M>, int inner) {
    constexpr int rest = M % R;
    constexpr bool shared = rest > 0 && rest * V < 8 && M > R;
    constexpr int end = M - rest - (shared ? R : 0), left = M - end;
    constexpr int first = shared ? (left + 1) / 2 : left, second = left - first;
    for (int i = 0; i < end; i += R)
        product_block<Accumulate, R, V, Pitch>(out.from(i), lhs.from(i), rhs, inner);
    if constexpr (first > 0)
        product_block<Accumulate, first, V, Pitch>(out.from(end), lhs.from(end), rhs, inner);
    if constexpr (second > 0) {
        constexpr int at = end + first;
        product_block<Accumulate, second, V, Pitch>(out.from(at), lhs.from(at), rhs, inner);
    }
}

// Compute the rows from i on; their number is known at run time only.
template <bool Accumulate, int R, int V, int Pitch, class T, class O, class L>
FLEXC_INLINE void product_rows(
    O out, L lhs, const T* rhs, int32_t rows, int inner, int i = 0) {
    if (!Accumulate && rows >= R) {
        // Computing some rows twice costs less than small blocks do.
        for (; i < rows; i += R) {
            const int at = i + R <= rows ? i : rows - R;
            product_block<Accumulate, R, V, Pitch>(out.from(at), lhs.from(at), rhs, inner);
        }
        return;
    }
    if constexpr (Accumulate)
        for (; i + R <= rows; i += R)
            product_block<Accumulate, R, V, Pitch>(out.from(i), lhs.from(i), rhs, inner);
    if constexpr (R > 1) {
        constexpr int fewer = R > 4 ? 4 : R > 2 ? 2 : 1;
        if (i < rows) product_rows<Accumulate, fewer, V, Pitch>(out, lhs, rhs, rows, inner, i);
    }
}

// Compute a panel in a function that is not inlined, one for each kind of product.
template <
    bool Accumulate, int R, int V, int Pitch, class T, class O, class L, class Rows>
__attribute__((noinline)) void product_panel(
    O out, L lhs, const T* rhs, Rows rows, int inner) {
    product_rows<Accumulate, R, V, Pitch>(out, lhs, rhs, rows, inner);
}

// Compute the first `rows` rows of out = lhs @ rhs, or of out += lhs @ rhs, with N
// columns. The sum is over the first `inner` terms.
template <bool Accumulate, int R, int V, int N, class T, class O, class L, class Rows>
struct Product {
    static void run(O out, L lhs, const T* rhs, Rows rows, int inner);
};
template <bool Accumulate, int R, int V, int N, class T, class O, class L, class Rows>
FLEXC_SHARED void Product<Accumulate, R, V, N, T, O, L, Rows>::run(
    O out, L lhs, const T* rhs, Rows rows, int inner) {
    constexpr int width = V * lanes<T>, whole = N / width * width;
    constexpr int rest = parts_of(N - whole, lanes<T>), P = pitch<T>(N);
    for (int j = 0; j < whole; j += width) {
        product_panel<Accumulate, R, V, P>(out.after(j), lhs, rhs + j, rows, inner);
        // The first panel asks for what all panels read.
        if constexpr (!is_kept<L>) lhs.next = {};
    }
    if constexpr (rest > 0)
        product_panel<Accumulate, R, rest, P>(out.after(whole), lhs, rhs + whole, rows, inner);
}

template <int R, int V, class A, class T, int M, int N, int K, class L, class Rows>
FLEXC_INLINE void product(
    Tile<A, M, N> out, L lhs, Tile<T, K, N> rhs, Rows rows, int32_t inner) {
    Product<false, R, V, N, T, TileResult<A, N>, L, Rows>::run(
        result(out), lhs, rhs.data, rows, inner);
}

template <int R, int V, class A, class T, int M, int N, int K, class L, class Rows>
FLEXC_INLINE void add_product(
    Tile<A, M, N> out, L lhs, Tile<T, K, N> rhs, Rows rows, int32_t inner) {
    Product<true, R, V, N, T, TileResult<A, N>, L, Rows>::run(
        result(out), lhs, rhs.data, rows, inner);
}

// Add a product to memory, where element (i, j) is out[i * stride + j].
template <class T> using MemoryResult = Result<T, int64_t>;
template <int R, int V, class A, class T, int N, int K, class L, class Rows>
FLEXC_INLINE void add_product(
    A* out, int64_t stride, L lhs, Tile<T, K, N> rhs, Rows rows, int32_t inner) {
    static_assert(N % lanes<T> == 0, "memory has no columns beyond the last");
    Product<true, R, V, N, T, MemoryResult<A>, L, Rows>::run(
        {out, stride}, lhs, rhs.data, rows, inner);
}

}  // namespace flexc

// Packed products on a matrix unit (Intel AMX). A tile register holds 16 rows of 64
// bytes: 16 floats of the result, 32 elements of the lhs or 16 pairs of the rhs. Zeros fill
// up the last terms. Fewer than 16 rows, and the last rows of sums in memory, are
// multiplied by vector instructions.
//
// Without the unit, the same is computed in plain C++.
#pragma once

#include "flexc_matmul.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define FLEXC_TILE_INSTRUCTIONS
#endif

namespace flexc {

constexpr int tile_rows = room_rows, tile_depth = kept_columns;

#ifdef FLEXC_TILE_INSTRUCTIONS

// While an instance lives, the tile registers of this thread have full size. The process
// must have the system's permission.
class TileRegisters {
    struct Configuration {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };

public:
    TileRegisters() {
        const Configuration configuration;
        asm volatile("ldtilecfg %0" ::"m"(configuration));
    }
    ~TileRegisters() { asm volatile("tilerelease"); }
    TileRegisters(const TileRegisters&) = delete;
};

template <int To> FLEXC_INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(To)); }
template <int To> FLEXC_INLINE void tile_load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(To) : "memory");
}
template <int From> FLEXC_INLINE void tile_store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(From) : "memory");
}
template <int To, int A, int B> FLEXC_INLINE void tile_multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(To), "i"(A), "i"(B));
}

#else

struct TileRegister {
    char row[tile_rows][64];
};
inline thread_local TileRegister emulated_tiles[8];

struct TileRegisters {
    TileRegisters() {}
    TileRegisters(const TileRegisters&) = delete;
};

template <int To> void tile_zero() { emulated_tiles[To] = {}; }
template <int To> void tile_load(const void* from, int64_t row_bytes) {
    for (int i = 0; i < tile_rows; ++i)
        __builtin_memcpy(
            emulated_tiles[To].row[i], static_cast<const char*>(from) + i * row_bytes, 64);
}
template <int From> void tile_store(void* to, int64_t row_bytes) {
    for (int i = 0; i < tile_rows; ++i)
        __builtin_memcpy(static_cast<char*>(to) + i * row_bytes, emulated_tiles[From].row[i], 64);
}
template <int To, int A, int B> void tile_multiply() {
    for (int i = 0; i < tile_rows; ++i)
        for (int j = 0; j < 64; j += sizeof(float)) {
            float sum;
            __builtin_memcpy(&sum, emulated_tiles[To].row[i] + j, sizeof(sum));
            for (int k = 0; k < 16; ++k) {
                bfloat16x2 a, b;
                __builtin_memcpy(&a, emulated_tiles[A].row[i] + 4 * k, sizeof(a));
                __builtin_memcpy(&b, emulated_tiles[B].row[k] + j, sizeof(b));
                sum += float(a.low) * float(b.low);
                sum += float(a.high) * float(b.high);
            }
            __builtin_memcpy(emulated_tiles[To].row[i] + j, &sum, sizeof(sum));
        }
}

#endif

// Call f with each number of a list, as part of a type.
template <int... I, class F>
FLEXC_INLINE void each(Lanes<I...>, F f) { (f(fixed<I>), ...); }
template <int N> using UpTo = typename LanesUpTo<N>::type;

FLEXC_INLINE constexpr int steps_of(int inner) { return parts_of(inner, tile_depth); }

// Return `count` elements, with zeros after them. No others are read.
FLEXC_INLINE Vec<uint16_t, tile_depth> load_some(const bfloat16* from, int count) {
#if defined(FLEXC_AVX512) && defined(__AVX512BW__) && FLEXC_VECTOR_BYTES == 64
    typedef short Shorts __attribute__((vector_size(64)));
    const auto* shorts = reinterpret_cast<const short*>(from);
    const auto loaded = __builtin_ia32_loaddquhi512_mask(shorts, Shorts{}, (1u << count) - 1);
    return __builtin_bit_cast(Vec<uint16_t, tile_depth>, loaded);
#else
    Vec<uint16_t, tile_depth> found{};
    __builtin_memcpy(&found, from, count * sizeof(bfloat16));
    return found;
#endif
}

// Elements of a plain type: GCC initialises an array of a class in a loop.
template <int Rows> using Copies = uint16_t[Rows * tile_depth];

// Return the lhs of step k. If fewer than 32 of `inner` terms are left, copy those of
// `Rows` rows and add zeros.
template <int Rows, int M>
FLEXC_INLINE auto step_of(KeptOperand<M> lhs, int k, int, Copies<Rows>&) { return lhs.block(k); }
template <int Rows, class Row, class Next>
FLEXC_INLINE Strided<bfloat16, int64_t, Fixed<1>, Fixed<0>> step_of(
    Strided<bfloat16, Row, Fixed<1>, Next> lhs, int k, int inner, Copies<Rows>& copies) {
    const int at = k * tile_depth;
    if (at + tile_depth <= inner) return {lhs.data + at, lhs.row};
    for (int i = 0; i < Rows; ++i)
        store_vector(copies + i * tile_depth, load_some(lhs.at(i) + at, inner - at));
    return {reinterpret_cast<const bfloat16*>(copies), tile_depth};
}

// Ask for the tile register of lhs of step k.
template <int M>
FLEXC_INLINE void prefetch_step(KeptOperand<M> lhs, int k) {
#pragma GCC unroll 16
    for (int i = 0; i < tile_rows; ++i) __builtin_prefetch(lhs.block(k).at(i));
}
template <class Row, class Next>
FLEXC_INLINE void prefetch_step(Strided<bfloat16, Row, Fixed<1>, Next> lhs, int k) {
#pragma GCC unroll 16
    for (int i = 0; i < tile_rows; ++i) __builtin_prefetch(lhs.at(i) + k * tile_depth);
}

// Add `tile_depth` terms to R x V tile registers of sums. Four of the eight registers
// hold sums; the others hold two rows of lhs and two columns of rhs, or one row and, in
// turn, three columns.
template <int R, int V, int Pitch, class L>
FLEXC_INLINE void tile_step(L lhs, const bfloat16x2* rhs) {
    static_assert(R * V <= 4 && (R == 1 || V <= 2), "there are eight tile registers");
    if constexpr (V > 2) {
        tile_load<4>(lhs.data, lhs.row * sizeof(bfloat16));
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            constexpr int column = 5 + int(v) % 3;
            tile_load<column>(rhs + v * tile_rows, Pitch * sizeof(bfloat16x2));
            tile_multiply<int(v), 4, column>();
        });
    } else {
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            tile_load<6 + int(v)>(rhs + v * tile_rows, Pitch * sizeof(bfloat16x2));
        });
        each(UpTo<R>{}, [=](auto i) FLEXC_EACH {
            constexpr int row = 4 + int(i) % 2;
            tile_load<row>(lhs.at(i * tile_rows), lhs.row * sizeof(bfloat16));
            each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
                tile_multiply<int(i) * V + int(v), row, 6 + int(v)>();
            });
        });
    }
}

template <bool Accumulate, int R, int V, class O>
FLEXC_INLINE void start_sums(O out) {
    each(UpTo<R>{}, [=](auto i) FLEXC_EACH {
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            constexpr int sum = int(i) * V + int(v);
            if constexpr (Accumulate)
                tile_load<sum>(out.at(i * tile_rows) + v * tile_rows, out.pitch * sizeof(float));
            else
                tile_zero<sum>();
        });
    });
}

template <int R, int V, class O>
FLEXC_INLINE void store_sums(O out) {
    each(UpTo<R>{}, [=](auto i) FLEXC_EACH {
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            auto* to = out.at(i * tile_rows) + v * tile_rows;
            tile_store<int(i) * V + int(v)>(to, out.pitch * sizeof(float));
        });
    });
}

// Compute R x V tile registers of the result.
template <bool Accumulate, int R, int V, int Pitch, class O, class L>
FLEXC_INLINE void tile_block(O out, L lhs, const bfloat16x2* rhs, int inner) {
    alignas(64) Copies<R * tile_rows> copies;
    start_sums<Accumulate, R, V>(out);
#pragma GCC unroll 1
    for (int k = 0, steps = steps_of(inner); k < steps; ++k) {
        // Long operands come from a second-level cache: a load would wait for each row.
        if constexpr (V > 2) {
            static_assert(R == 1, "a step reads one tile register of lhs");
            if (k + 1 < steps)
                prefetch_step(lhs, k + 1);
            else
                prefetch_step(lhs.from(tile_rows), 0);
        }
        const auto terms = step_of<R * tile_rows>(lhs, k, inner, copies);
        tile_step<R, V, Pitch>(terms, rhs + k * (Pitch * tile_depth / 2));
    }
    store_sums<R, V>(out);
}

// An rhs of one or two steps, of up to two tile registers, stays in registers while all
// rows are computed: a load of a tile register takes as long as a product if another
// thread shares the core.
template <int V> constexpr int resident_steps = V <= 2 ? 2 : 0;

template <int V, int Pitch>
FLEXC_INLINE void load_resident(const bfloat16x2* rhs, int steps) {
    each(UpTo<resident_steps<V>>{}, [=](auto k) FLEXC_EACH {
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            const auto* from = rhs + k * (Pitch * tile_depth / 2) + v * tile_rows;
            if (k < steps) tile_load<4 + int(k) * V + int(v)>(from, Pitch * sizeof(bfloat16x2));
        });
    });
}

// Compute V tile registers of the result, of an rhs in registers.
template <bool Accumulate, int V, class O, class L>
FLEXC_INLINE void tile_row(O out, L lhs, int inner) {
    alignas(64) Copies<tile_rows> copies;
    const int steps = steps_of(inner);
    start_sums<Accumulate, 1, V>(out);
    each(UpTo<resident_steps<V>>{}, [=, &copies](auto k) FLEXC_EACH {
        if (k >= steps) return;
        const auto terms = step_of<tile_rows>(lhs, k, inner, copies);
        tile_load<2 + int(k)>(terms.data, terms.row * sizeof(bfloat16));
    });
    each(UpTo<resident_steps<V>>{}, [=](auto k) FLEXC_EACH {
        each(UpTo<V>{}, [=](auto v) FLEXC_EACH {
            if (k < steps) tile_multiply<int(v), 2 + int(k), 4 + int(k) * V + int(v)>();
        });
    });
    store_sums<1, V>(out);
}

// Fill the rest of the last step with zeros. Nothing reads rows of pairs beyond the
// counted terms.
template <int Pitch>
FLEXC_INLINE void pad_pairs(bfloat16x2* rhs, int inner) {
    for (int k = (inner + 1) / 2; k < steps_of(inner) * tile_depth / 2; ++k)
        __builtin_memset(rhs + k * Pitch, 0, Pitch * sizeof(bfloat16x2));
}

// Compute all rows of V columns of tile registers. A block of rows that is left overlaps
// the one before, unless it adds.
template <bool Accumulate, int R, int V, int Pitch, class O, class L>
FLEXC_INLINE void tile_panel(O out, L lhs, const bfloat16x2* rhs, int rows, int inner) {
    // Buffers and kept blocks have memory for whole tile registers after their rows.
    if constexpr (is_kept<L> && !is_same<O, MemoryResult<float>>)
        rows = parts_of(rows, tile_rows) * tile_rows;
    const int steps = steps_of(inner);
    int i = 0;
    const bool is_resident = steps <= resident_steps<V>;
    if (is_resident)
        load_resident<V, Pitch>(rhs, steps);
    else
        for (; i + R * tile_rows <= rows; i += R * tile_rows)
            tile_block<Accumulate, R, V, Pitch>(out.from(i), lhs.from(i), rhs, inner);
    for (; i < rows && (Accumulate ? i + tile_rows <= rows : rows >= tile_rows); i += tile_rows) {
        const int at = block_start(i, rows, tile_rows);
        if (is_resident)
            tile_row<Accumulate, V>(out.from(at), lhs.from(at), inner);
        else
            tile_block<Accumulate, 1, V, Pitch>(out.from(at), lhs.from(at), rhs, inner);
    }
    if (i < rows)
        product_rows<Accumulate, (V > 2 ? 4 : 8), V, Pitch>(
            out.from(i), lhs.from(i), rhs, int32_t(rows - i), inner);
}

// As `Product`, of pairs, on the matrix unit.
template <bool Accumulate, int R, int V, int N, class O, class L, class Rows>
struct TileProduct {
    static void run(O out, L lhs, bfloat16x2* rhs, Rows rows, int inner);
};
template <bool Accumulate, int R, int V, int N, class O, class L, class Rows>
FLEXC_SHARED void TileProduct<Accumulate, R, V, N, O, L, Rows>::run(
    O out, L lhs, bfloat16x2* rhs, Rows rows, int inner) {
    constexpr int P = pitch<float>(N), width = V * tile_rows, whole = N / width * width;
    constexpr int rest = parts_of(N - whole, tile_rows);
    pad_pairs<P>(rhs, inner);
    for (int j = 0; j < whole; j += width)
        tile_panel<Accumulate, R, V, P>(out.after(j), lhs, rhs + j, int(rows), inner);
    if constexpr (rest > 0)
        tile_panel<Accumulate, R, rest, P>(out.after(whole), lhs, rhs + whole, int(rows), inner);
}

template <int R, int V, int M, int N, int K, class L, class Rows>
FLEXC_INLINE void tile_product(
    Tile<float, M, N> out, L lhs, Tile<bfloat16x2, K, N> rhs, Rows rows, int32_t inner) {
    TileProduct<false, R, V, N, TileResult<float, N>, L, Rows>::run(
        result(out), lhs, rhs.data, rows, inner);
}

template <int R, int V, int M, int N, int K, class L, class Rows>
FLEXC_INLINE void add_tile_product(
    Tile<float, M, N> out, L lhs, Tile<bfloat16x2, K, N> rhs, Rows rows, int32_t inner) {
    TileProduct<true, R, V, N, TileResult<float, N>, L, Rows>::run(
        result(out), lhs, rhs.data, rows, inner);
}

template <int R, int V, int N, int K, class L, class Rows>
FLEXC_INLINE void add_tile_product(
    float* out, int64_t stride, L lhs, Tile<bfloat16x2, K, N> rhs, Rows rows, int32_t inner) {
    static_assert(N % tile_rows == 0, "memory has no columns beyond the last");
    TileProduct<true, R, V, N, MemoryResult<float>, L, Rows>::run(
        {out, stride}, lhs, rhs.data, rows, inner);
}

// A product that is computed a step at a time. A map takes these steps between its rows,
// so that both units work. The sum takes `Depth` steps of terms. A step computes a row of
// tile registers if the rhs stays in registers. Otherwise it adds `tile_depth` terms to a
// block of R x V tile registers.
template <int R, int V, int N, int Depth, class L>
class TileSteps {
    static constexpr bool is_resident = Depth <= resident_steps<V>;
    static constexpr int height = (is_resident ? 1 : R) * tile_rows, width = V * tile_rows;
    static constexpr int P = pitch<float>(N), parts = is_resident ? 1 : Depth;
    static_assert(N % width == 0, "blocks of columns are whole");
    TileResult<float, N> out;
    L lhs;
    const bfloat16x2* rhs;
    int rows, inner, i = 0, j = 0, k = 0;
    int left = 0, shares = 1, due = 0, each_share = 0;

public:
    FLEXC_INLINE TileSteps(
        TileResult<float, N> out, L lhs, const bfloat16x2* rhs, int rows, int inner)
        : out(out), lhs(lhs), rhs(rhs), rows(rows), inner(inner) {
        left = parts * parts_of(rows, height) * (N / width);
    }
    // Prepare for this number of shares.
    FLEXC_INLINE void spread(int times) {
        each_share = left;
        shares = times > 0 ? times : 1;
    }
    FLEXC_INLINE void share() {
#pragma GCC unroll 1
        for (due += each_share; due > 0; due -= shares)
            if (left) step();
    }
    FLEXC_INLINE void finish() {
#pragma GCC unroll 1
        while (left) step();
    }

private:
    FLEXC_INLINE void step() {
        // The last block overlaps the one before.
        const int at = block_start(i, rows, height);
        const auto to = out.from(at).after(j);
        if constexpr (is_resident) {
            if (i == 0) load_resident<V, P>(rhs + j, Depth);
            tile_row<false, V>(to, lhs.from(at), inner);
        } else {
            alignas(64) Copies<height> copies;
            if (k == 0) start_sums<false, R, V>(to);
            const auto terms = step_of<height>(lhs.from(at), k, inner, copies);
            tile_step<R, V, P>(terms, rhs + k * (P * tile_depth / 2) + j);
        }
        --left;
        if (++k < parts) return;
        if constexpr (!is_resident) store_sums<R, V>(to);
        k = 0;
        if ((i += height) < rows) return;
        i = 0;
        j += width;
    }
};

template <int R, int V, int M, int N, int K, class L, class Rows>
FLEXC_INLINE TileSteps<R, V, N, steps_of(2 * K), L> tile_steps(
    Tile<float, M, N> out, L lhs, Tile<bfloat16x2, K, N> rhs, Rows rows, int32_t inner) {
    pad_pairs<pitch<float>(N)>(rhs.data, inner);
    // Fewer rows than a block are multiplied at once.
    const bool has_blocks = rows >= R * tile_rows;
    if (!has_blocks && rows > 0) tile_product<R, V>(out, lhs, rhs, rows, inner);
    return {result(out), lhs, rhs.data, has_blocks ? int(rows) : 0, inner};
}

}  // namespace flexc

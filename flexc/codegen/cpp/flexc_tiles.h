// Packed products on a matrix unit (Intel AMX). A tile register holds 16 rows of 64
// bytes: 16 floats of the result, 32 elements of the lhs or 16 pairs of the rhs. Rows and
// terms that fill no tile register are multiplied by vector instructions.
//
// Without the unit, the same is computed in plain C++.
#pragma once

#include "flexc_matmul.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define FLEXC_TILE_INSTRUCTIONS
#endif

namespace flexc {

constexpr int tile_rows = 16, tile_depth = 32;

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

// Compute R x V tile registers of the result in `steps` steps. Four registers hold sums,
// two rows of lhs and two columns of rhs.
template <bool Accumulate, int R, int V, int Pitch, class O, class L>
FLEXC_INLINE void tile_block(O out, L lhs, const bfloat16x2* rhs, int steps) {
    static_assert(R * V <= 4 && V <= 2, "there are eight tile registers");
    const int64_t out_bytes = out.pitch * sizeof(float);
    const int64_t lhs_bytes = lhs.row * sizeof(bfloat16);
    each(UpTo<R>{}, [=](auto i) {
        each(UpTo<V>{}, [=](auto v) {
            constexpr int sum = int(i) * V + int(v);
            const auto* from = out.at(i * tile_rows) + v * tile_rows;
            if constexpr (Accumulate)
                tile_load<sum>(from, out_bytes);
            else
                tile_zero<sum>();
        });
    });
#pragma GCC unroll 1
    for (int k = 0; k < steps; ++k) {
        each(UpTo<V>{}, [=](auto v) {
            tile_load<6 + int(v)>(rhs + v * tile_rows, Pitch * sizeof(bfloat16x2));
        });
        each(UpTo<R>{}, [=](auto i) {
            constexpr int row = 4 + int(i) % 2;
            tile_load<row>(lhs.at(i * tile_rows), lhs_bytes);
            each(UpTo<V>{}, [=](auto v) { tile_multiply<int(i) * V + int(v), row, 6 + int(v)>(); });
        });
        lhs.data += tile_depth;
        rhs += Pitch * tile_depth / 2;
    }
    each(UpTo<R>{}, [=](auto i) {
        each(UpTo<V>{}, [=](auto v) {
            tile_store<int(i) * V + int(v)>(out.at(i * tile_rows) + v * tile_rows, out_bytes);
        });
    });
}

// An lhs of whole steps: elements beyond the counted terms are 0 up to the next step.
template <int K>
struct PaddedOperand : TileOperand<bfloat16, K> {
    static_assert(K % tile_depth == 0, "the last step is whole");
};
template <class L> constexpr bool is_padded = false;
template <int K> constexpr bool is_padded<PaddedOperand<K>> = true;
template <int M, int K>
FLEXC_INLINE auto strided(const Kept<bfloat16, M, K>& tile) {
    const TileOperand<bfloat16, K> lhs = strided(Tile<bfloat16, M, K>(tile));
    if constexpr (K % tile_depth == 0)
        return PaddedOperand<K>{lhs};
    else
        return lhs;
}

// Fill the rest of the last step with zeros, and return the terms of all steps.
template <int Pitch>
FLEXC_INLINE int pad_pairs(bfloat16x2* rhs, int inner) {
    const int end = (inner + tile_depth - 1) / tile_depth * tile_depth;
    for (int k = (inner + 1) / 2; k < end / 2; ++k)
        __builtin_memset(rhs + k * Pitch, 0, Pitch * sizeof(bfloat16x2));
    return end;
}

// Compute all rows of V columns of tile registers. A block of rows that is left overlaps
// the one before, unless it adds.
template <bool Accumulate, int R, int V, int Pitch, class O, class L>
FLEXC_INLINE void tile_panel(O out, L lhs, const bfloat16x2* rhs, int rows, int inner) {
    const int steps = inner / tile_depth, done = steps * tile_depth;
    int i = 0;
    for (; i + R * tile_rows <= rows; i += R * tile_rows)
        tile_block<Accumulate, R, V, Pitch>(out.from(i), lhs.from(i), rhs, steps);
    for (; i < rows && (Accumulate ? i + tile_rows <= rows : rows >= tile_rows); i += tile_rows) {
        const int at = Accumulate || i + tile_rows <= rows ? i : rows - tile_rows;
        tile_block<Accumulate, 1, V, Pitch>(out.from(at), lhs.from(at), rhs, steps);
    }
    i = i < rows ? i : rows;
    const auto after = Strided<bfloat16, decltype(lhs.row), Fixed<1>, Fixed<0>>{
        lhs.data + done, lhs.row, {}, {}};
    if (done < inner && i > 0)
        product_rows<true, 8, V, Pitch>(out, after, rhs + done / 2 * Pitch, int32_t(i), inner - done);
    if (i < rows)
        product_rows<Accumulate, 8, V, Pitch>(out.from(i), lhs.from(i), rhs, int32_t(rows - i), inner);
}

// As `Product`, of pairs, on the matrix unit.
template <bool Accumulate, int R, int V, int N, class O, class L, class Rows>
struct TileProduct {
    static void run(O out, L lhs, const bfloat16x2* rhs, Rows rows, int inner);
};
template <bool Accumulate, int R, int V, int N, class O, class L, class Rows>
FLEXC_SHARED void TileProduct<Accumulate, R, V, N, O, L, Rows>::run(
    O out, L lhs, const bfloat16x2* rhs, Rows rows, int inner) {
    constexpr int P = pitch<float>(N), width = V * tile_rows, whole = N / width * width;
    // Rows of pairs beyond the counted terms are unspecified, so that they may change.
    if constexpr (is_padded<L>) inner = pad_pairs<P>(const_cast<bfloat16x2*>(rhs), inner);
    for (int j = 0; j < whole; j += width)
        tile_panel<Accumulate, R, V, P>(out.after(j), lhs, rhs + j, int(rows), inner);
    if constexpr (whole < N)
        tile_panel<Accumulate, R, (N - whole + tile_rows - 1) / tile_rows, P>(
            out.after(whole), lhs, rhs + whole, int(rows), inner);
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

// A product that is computed a step at a time: each adds `tile_depth` terms to a block of
// R x V tile registers. A map takes these steps between its rows, so that both units work.
template <int R, int V, int N, class L>
class TileSteps {
    static constexpr int height = R * tile_rows, width = V * tile_rows, P = pitch<float>(N);
    static_assert(N % width == 0, "blocks of columns are whole");
    TileResult<float, N> out;
    L lhs;
    const bfloat16x2* rhs;
    int rows, depth, i = 0, j = 0, k = 0;
    int left = 0, shares = 1, due = 0, each_share = 0;

public:
    FLEXC_INLINE TileSteps(
        TileResult<float, N> out, L lhs, const bfloat16x2* rhs, int rows, int inner)
        : out(out), lhs(lhs), rhs(rhs), rows(rows), depth(inner / tile_depth) {
        left = depth * ((rows + height - 1) / height) * (N / width);
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
        const int at = i + height <= rows ? i : rows - height;
        const auto to = out.from(at).after(j);
        const int64_t out_bytes = out.pitch * sizeof(float), lhs_bytes = lhs.row * sizeof(bfloat16);
        if (k == 0) each(UpTo<R * V>{}, [](auto sum) { tile_zero<int(sum)>(); });
        const bfloat16x2* right = rhs + k * (P * tile_depth / 2) + j;
        const auto* first = lhs.at(at) + k * tile_depth;
        each(UpTo<V>{}, [&](auto v) FLEXC_EACH {
            tile_load<6 + int(v)>(right + v * tile_rows, P * sizeof(bfloat16x2));
        });
        each(UpTo<R>{}, [&](auto r) FLEXC_EACH {
            constexpr int row = 4 + int(r) % 2;
            tile_load<row>(first + r * tile_rows * lhs.row, lhs_bytes);
            each(UpTo<V>{}, [&](auto v) FLEXC_EACH {
                tile_multiply<int(r) * V + int(v), row, 6 + int(v)>();
            });
        });
        --left;
        if (++k < depth) return;
        each(UpTo<R>{}, [&](auto r) FLEXC_EACH {
            each(UpTo<V>{}, [&](auto v) FLEXC_EACH {
                tile_store<int(r) * V + int(v)>(to.at(r * tile_rows) + v * tile_rows, out_bytes);
            });
        });
        k = 0;
        if ((i += height) < rows) return;
        i = 0;
        j += width;
    }
};

template <int R, int V, int M, int N, int K, class L, class Rows>
FLEXC_INLINE TileSteps<R, V, N, L> tile_steps(
    Tile<float, M, N> out, L lhs, Tile<bfloat16x2, K, N> rhs, Rows rows, int32_t inner) {
    // Fewer rows than a block are multiplied at once.
    const bool has_blocks = rows >= R * tile_rows;
    if (!has_blocks && rows > 0) tile_product<R, V>(out, lhs, rhs, rows, inner);
    return {result(out), lhs, rhs.data, has_blocks ? int(rows) : 0, inner};
}

}  // namespace flexc

// Packed operands of products: pairs of 16-bit floats that one instruction multiplies
// and adds. The rhs of such a product is a tile of pairs, each of two neighbouring rows.
// Of the lhs, two neighbouring elements of a row are a pair as they lie in memory.
#pragma once

#include "flexc_memory.h"

// The machine's instructions are used. Elsewhere the same results, except of subnormal
// numbers, which the instructions take as 0, are computed in plain C++.
#if defined(__AVX512BF16__) && FLEXC_VECTOR_BYTES == 64
#define FLEXC_PAIR_INSTRUCTIONS
#endif

namespace flexc {

struct bfloat16x2 {
    bfloat16 low, high;
};
template <int L> struct PairVector { Vec<uint32_t, L> raw; };
template <int L> struct VectorOf<bfloat16x2, L> { using type = PairVector<L>; };
using Pairs = Vector<bfloat16x2>;

// Pairs need the alignment of their halves only.
template <int L>
FLEXC_INLINE PairVector<L> load_vector(const bfloat16x2* p) {
    const Vec<uint16_t, 2 * L> halves = load_vector<2 * L>(&p->low.raw);
    return {__builtin_bit_cast(typename VectorOf<uint32_t, L>::type, halves)};
}
template <int L>
FLEXC_INLINE void store_vector(bfloat16x2* p, PairVector<L> x) {
    using Halves = Vec<uint16_t, 2 * L>;
    store_vector(&p->low.raw, __builtin_bit_cast(Halves, x.raw));
}

// Return x with the products of two pairs added.
FLEXC_INLINE Vector<float> multiply_add(Vector<float> x, Pairs a, Pairs b) {
#ifdef FLEXC_PAIR_INSTRUCTIONS
    asm("vdpbf16ps %2, %1, %0" : "+v"(x) : "v"(a.raw), "v"(b.raw));
    return x;
#else
    x += bits<float>(a.raw & 0xffff0000) * bits<float>(b.raw & 0xffff0000);
    return x + bits<float>(a.raw << 16) * bits<float>(b.raw << 16);
#endif
}

// Round two vectors to pairs.
FLEXC_INLINE Pairs round_pairs(Vector<float> low, Vector<float> high) {
#ifdef FLEXC_PAIR_INSTRUCTIONS
    Vec<uint16_t, 32> halves;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(high), "v"(low));
    halves = __builtin_shufflevector(
        halves, halves, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return {__builtin_bit_cast(Vector<uint32_t>, halves)};
#else
    const bfloat16* type = nullptr;
    return {round_to(type, low) | round_to(type, high) << 16};
#endif
}

// Return the bits of numbers that bfloat16 holds exactly, in the upper half.
template <int L, class S>
FLEXC_INLINE Vec<uint32_t, L> upper_bits(const S* p) {
    return bits<uint32_t>(convert<float>(load_vector<L>(p)));
}

// Return pairs of two neighbouring elements at each place.
template <int L, class S>
FLEXC_INLINE Vec<uint32_t, L> paired(const S* low, const S* high) {
    const auto second = high ? upper_bits<L>(high) : Vec<uint32_t, L>{};
    return upper_bits<L>(low) >> 16 | second;
}

// Pack the first `count` rows. After an odd number there is a row of zeros.
template <class T, int M, int N>
FLEXC_INLINE void pack(Tile<bfloat16x2, M / 2, N> out, Tile<T, M, N> in, int count = M) {
    constexpr int L = lanes<float>;
    for (int i = 0; i < count; i += 2)
        for (int j = 0; j < N; j += L) {
            const auto low = convert<float>(load_vector<L>(in[i] + j));
            const auto high = i + 1 < count
                ? convert<float>(load_vector<L>(in[i + 1] + j)) : Vector<float>{};
            store_vector(out[i / 2] + j, round_pairs(low, high));
        }
}

// Compute out[i][j] = the pair in[2 i + j * in_pitch], in[2 i + 1 + j * in_pitch] within
// rows and columns, 0 beyond.
template <int M, int N>
struct LoadTransposed<bfloat16x2, M, N, bfloat16> {
    using Out = Tile<bfloat16x2, M, N>;
    static void run(Out out, const bfloat16* in, int64_t in_pitch, int rows, int columns);
};
template <int M, int N>
FLEXC_SHARED void LoadTransposed<bfloat16x2, M, N, bfloat16>::run(
    Out out, const bfloat16* in, int64_t in_pitch, int rows, int columns) {
    constexpr int L = lanes<float>;
    for (int j = 0; j < N; j += L)
        for (int at = 0; at < M; at += L) {
            Vec<uint32_t, L> square[L];
            const int i = M < L ? 0 : block_start(at, M, L);
            const bool whole = rows >= 2 * (i + L);
#pragma GCC unroll 16
            for (int k = 0; k < L; ++k) {
                const bfloat16* from = in + (j + k) * in_pitch + 2 * i;
                bfloat16x2 some[L] = {};
                for (int n = 2 * i; j + k < columns && !whole && n < rows; ++n)
                    (n % 2 ? some[n / 2 - i].high : some[n / 2 - i].low) = from[n - 2 * i];
                const auto* pairs = reinterpret_cast<const bfloat16x2*>(from);
                square[k] = load_vector<L>(whole && j + k < columns ? pairs : some).raw;
            }
            transpose_square<1>(square);
#pragma GCC unroll 16
            for (int k = 0; k < L; ++k)
                if (i + k < M) store_vector(out[i + k] + j, PairVector<L>{square[k]});
        }
}

template <int M, int N>
FLEXC_INLINE void load(
    Tile<bfloat16x2, M, N> out, const bfloat16* in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    const int rows = clip(extent_0, 2 * M), columns = clip(extent_1, N);
    if (stride_0 == 1) 
        return LoadTransposed<bfloat16x2, M, N, bfloat16>::run(out, in, stride_1, rows, columns);
    for (int i = 0; i < 2 * M; ++i)
        for (int j = 0; j < N; ++j) {
            bfloat16x2& pair = out[i / 2][j];
            const bool inside = i < rows && j < columns;
            const bfloat16 x = inside ? in[i * stride_0 + j * stride_1] : bfloat16{};
            (i % 2 ? pair.high : pair.low) = x;
        }
}

// Compute out[i][j] = in[i + j * in_pitch] within rows and columns, 0 in columns beyond:
// transpose the pairs of neighbouring columns.
template <int M, int N, class S>
struct LoadTransposed<bfloat16, M, N, S> {
    using Out = Tile<bfloat16, M, N>;
    static void run(Out out, const S* in, int64_t in_pitch, int rows, int columns);
};
template <int M, int N, class S>
FLEXC_SHARED void LoadTransposed<bfloat16, M, N, S>::run(
    Out out, const S* in, int64_t in_pitch, int rows, int columns) {
    constexpr int L = lanes<float>, room = pitch<bfloat16>(N);
    for (int j = 0; j < room; j += 2 * L) {
        for (int at = 0; rows >= L && at < rows; at += L) {
            Vec<uint32_t, L> square[L];
            const int i = block_start(at, rows, L);
#pragma GCC unroll 16
            for (int k = 0; k < L; ++k) {
                const S* from = in + (j + 2 * k) * in_pitch + i;
                const int left = columns - j - 2 * k;
                square[k] = Vec<uint32_t, L>{};
                if (left > 0) square[k] = paired<L>(from, left > 1 ? from + in_pitch : nullptr);
            }
            transpose_square<1>(square);
#pragma GCC unroll 16
            for (int k = 0; k < L; ++k) {
                auto* to = reinterpret_cast<bfloat16x2*>(out[i + k] + j);
                if (j + 2 * L <= room)
                    store_vector(to, PairVector<L>{square[k]});
                else
                    __builtin_memcpy(to, &square[k], (room - j) * sizeof(bfloat16));
            }
        }
        for (int i = 0; rows < L && i < rows; ++i)
            for (int k = j; k < room && k < j + 2 * L; ++k)
                out[i][k] = k < columns ? convert<bfloat16>(in[i + k * in_pitch]) : bfloat16{};
    }
}

constexpr int kept_columns = 32;

// A tile that is loaded in blocks of columns. Blocks stay in memory, so that later
// programs of the thread find them: transposing costs as much as a product. Memory that
// a kernel reads does not change while the kernel runs.
template <class T, int M, int N>
class Kept {
    static_assert(N % kept_columns == 0, "blocks of columns are whole");
    using Block = Tile<T, M, kept_columns>;
    struct Source {
        const void* from;
        int64_t stride;
        int rows, columns;
        bool is(const Source& s) const {
            return from == s.from && stride == s.stride && rows == s.rows && columns == s.columns;
        }
    };
    static constexpr int count = N / kept_columns, room = (9 << 18) / (Block::size * int(sizeof(T)));
    // As many adjacent blocks have different places, as the number is odd.
    static constexpr int places = (room > count ? room : count) | 1;
    Source sources[places] = {};
    char* allocation;
    uint32_t random = 0;

    // Find the place of block i of a tile. Return true if the block is there.
    bool find(const Source& wanted, int i) {
        const int64_t row_bytes = wanted.stride * int64_t(sizeof(T));
        const uint64_t step = row_bytes < 0 ? -row_bytes : row_bytes;
        const int place = step ? reinterpret_cast<size_t>(wanted.from) / step % places : 0;
        const bool has = step && sources[place].is(wanted);
        // A block gives way about every other time, so that loops over more blocks than
        // there is room for find some of them. The last places are for the others.
        random = random * 1664525 + 1013904223;
        const bool keeps = step && (has || !sources[place].from || random >> 31);
        if (keeps) sources[place] = wanted;
        blocks[i] = {memory() + size_t(keeps ? place : places + i) * Block::size};
        return has;
    }
    T* memory() const {
        return reinterpret_cast<T*>(allocation + (-reinterpret_cast<size_t>(allocation) & 63));
    }

public:
    Block blocks[count];

    Kept() {
        constexpr size_t beyond = Block::allocated - Block::size;
        constexpr size_t bytes = (size_t(places + count) * Block::size + beyond) * sizeof(T);
        allocation = static_cast<char*>(__builtin_malloc(bytes + 64));
        if (!allocation) __builtin_abort();
    }
    ~Kept() { __builtin_free(allocation); }
    Kept(const Kept&) = delete;

    // Load the blocks that have columns within the extent.
    template <class S>
    FLEXC_INLINE void load(
        const S* in, int64_t stride_0, int64_t stride_1, int32_t extent_0, int32_t extent_1) {
        for (int i = 0, at = 0; i < count && at < extent_1; ++i, at += kept_columns) {
            const S* from = in + at * stride_1;
            const int32_t left = extent_1 - at;
            if (!find({from, stride_1, clip(extent_0, M), clip(left, kept_columns)}, i))
                flexc::load(blocks[i], from, stride_0, stride_1, extent_0, left);
        }
    }
};

template <class T, int M, int N, class S>
FLEXC_INLINE void load(
    Kept<T, M, N>& out, const S* in, int64_t stride_0, int64_t stride_1,
    int32_t extent_0, int32_t extent_1) {
    out.load(in, stride_0, stride_1, extent_0, extent_1);
}

// A vector with one pair, two neighbouring elements of an lhs, in all lanes. `both` is
// false if the second one is beyond the sum.
FLEXC_INLINE Pairs spread_pair(const bfloat16* x, bool both = true) {
    uint32_t pair = x->raw;
    if (both) __builtin_memcpy(&pair, x, sizeof(pair));
    return {splat<lanes<uint32_t>>(pair)};
}

}  // namespace flexc

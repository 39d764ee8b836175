"""Words that emitted C++ cannot use as names of values."""

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
const constexpr continue decltype default delete do double else enum explicit export
extern false float for friend goto if inline int long mutable namespace new noexcept
not not_eq nullptr operator or or_eq private protected public register return short
signed sizeof static static_assert static_cast struct switch template this throw true
try typedef typeid typename union unsigned using virtual void volatile wchar_t while
xor xor_eq
"""

_SUPPORT = """
flexc FlushSubnormals half bfloat16 bool Vec Min all columns_at_once convert lanes
load_vector mask minus_one_if one_if read_if select splat store_vector vectors_at_once
int8_t int16_t int32_t int64_t Buffer Max Sum inf_f32 inf_f64 nan_f32 nan_f64 absf absi
acos acosh add_to asin asinh atan atan2 atanh bits cbrt ceil ceildivsi ceildivui copy
copysign cos cosh diagonals divsi divui dot erf exp exp2 expm1 fill floor floordivsi fma
fmod fptosi fptoui iota load log log10 log1p log2 matmul max maximumf maxnumf maxui min
minimumf minnumf minui pow read reduce_columns reduce_rows remsi remui round roundeven
rsqrt shli shrsi shrui sin sinh sqrt store tan tanh to_unsigned transpose trunc
"""

_KERNEL = "program grid_0 grid_1 grid_2 threads flush row col at v"

RESERVED = frozenset(f"{_KEYWORDS} {_SUPPORT} {_KERNEL}".split())
"""Keywords, what emitted code uses of the support headers, and loop variables."""

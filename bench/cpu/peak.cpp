// What the machine can do at most, by all threads of the OpenMP pool at once, so that
// no other pool spins beside them: fused multiply-adds, and reading memory.
//
// 12 independent sums hide the latency of an FMA on any CPU of today.
#if defined(__AVX512F__)
typedef float V __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float V __attribute__((vector_size(32)));
#else
typedef float V __attribute__((vector_size(16)));
#endif
#if defined(__aarch64__)
#define REGISTER "w"
#else
#define REGISTER "x"
#endif
#if defined(__AVX512F__)
#undef REGISTER
#define REGISTER "v"
#endif

constexpr long LANES = sizeof(V) / sizeof(float), SUMS = 12;

static double burst(long n, float x, float y) {
    const V b = V{} + y, c = V{} + x;
    V a0 = b, a1 = b, a2 = b, a3 = b, a4 = b, a5 = b;
    V a6 = b, a7 = b, a8 = b, a9 = b, a10 = b, a11 = b;
    for (long k = 0; k < n; ++k) {
#define STEP(a) a = a * b + c; asm volatile("" : "+" REGISTER(a));
        STEP(a0) STEP(a1) STEP(a2) STEP(a3) STEP(a4) STEP(a5)
        STEP(a6) STEP(a7) STEP(a8) STEP(a9) STEP(a10) STEP(a11)
    }
    const V s = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
    double sum = 0;
    for (long i = 0; i < LANES; ++i) sum += s[i];
    return sum;
}

// Runs `n` steps on each of `threads` threads; the floating point operations of one.
extern "C" __attribute__((visibility("default"))) double fma_burst(long n, int threads) {
    volatile double sink = 0;
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += burst(n, .5f, .5f);
    sink = sum;
    (void)sink;
    return 2.0 * SUMS * LANES * n;
}

// Reads `n` vectors' worth of floats, a part on each thread.
extern "C" __attribute__((visibility("default"))) double read_burst(
    const float* data, long n, int threads) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        V s[8] = {};
#pragma omp for schedule(static)
        for (long i = 0; i < n / (8 * LANES); ++i)
            for (long j = 0; j < 8; ++j) {
                V v;
                __builtin_memcpy(&v, data + (i * 8 + j) * LANES, sizeof v);
                s[j] += v;
            }
        for (long j = 0; j < 8; ++j)
            for (long i = 0; i < LANES; ++i) sum += s[j][i];
    }
    return sum;
}

/* AVX2 for the 8 x 8 blocks of a JPEG, two at once: one in each half of the vectors, whose 16-bit lanes are the values of a
 * row or of a column. Also the constants of both transforms, libjpeg's "islow". */
#ifndef SHARDFLOW_BLOCKS_H
#define SHARDFLOW_BLOCKS_H

#include <stdint.h>

#include "resample.h" /* SF_HAVE_AVX2 */

enum { CONST_BITS = 13, PASS1_BITS = 2 };

/* Constants of Loeffler, Ligtenberg and Moschytz (1989), times 2^13. */
enum {
    F_0_298 = 2446, F_0_390 = 3196, F_0_541 = 4433, F_0_765 = 6270, F_0_899 = 7373, F_1_175 = 9633, F_1_501 = 12299,
    F_1_847 = 15137, F_1_961 = 16069, F_2_053 = 16819, F_2_562 = 20995, F_3_072 = 25172,
    /* for the transforms to fewer samples */
    F_0_211 = 1730, F_0_509 = 4176, F_0_601 = 4926, F_0_720 = 5906, F_0_850 = 6967, F_1_061 = 8697, F_1_272 = 10426,
    F_1_451 = 11893, F_2_172 = 17799, F_3_624 = 29692,
};

#if defined(SF_HAVE_AVX2) && !defined(SF_GENERIC)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define SF_LOOPS(name) name##_avx2

static ALWAYS_INLINE AVX2 __m256i sf_load_halves(const void *low, const void *high) {
    const __m256i both = _mm256_castsi128_si256(_mm_load_si128(low));
    return _mm256_inserti128_si256(both, _mm_load_si128(high), 1);
}

/* Store eight bytes at each address. */
static ALWAYS_INLINE AVX2 void sf_store_quarters(__m256i a, uint8_t *const to[4]) {
    const __m128i low = _mm256_castsi256_si128(a), high = _mm256_extracti128_si256(a, 1);
    _mm_storel_epi64((__m128i *)to[0], low);
    _mm_storeh_pd((double *)(void *)to[1], _mm_castsi128_pd(low));
    _mm_storel_epi64((__m128i *)to[2], high);
    _mm_storeh_pd((double *)(void *)to[3], _mm_castsi128_pd(high));
}

static ALWAYS_INLINE AVX2 __m256i sf_load_bytes(const uint8_t *at) { /* 16 bytes, as 16-bit lanes */
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}
#else
#include "vectors.h"

#define AVX2
#define SF_LOOPS(name) name##_generic
#endif

static ALWAYS_INLINE AVX2 __m256i pair_of(int a, int b) {
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)a | (uint32_t)(uint16_t)b << 16));
}

/* 32-bit sums, in two vectors. */
typedef struct {
    __m256i low, high;
} wide;

static ALWAYS_INLINE AVX2 wide products(wide in, int a, int b) {
    const __m256i by = pair_of(a, b);
    return (wide){_mm256_madd_epi16(in.low, by), _mm256_madd_epi16(in.high, by)};
}
static ALWAYS_INLINE AVX2 wide interleave(__m256i a, __m256i b) {
    return (wide){_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}
static ALWAYS_INLINE AVX2 wide plus(wide a, wide b) {
    return (wide){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
static ALWAYS_INLINE AVX2 wide minus(wide a, wide b) {
    return (wide){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
static ALWAYS_INLINE AVX2 __m256i descaled(wide a, int bits) {
    const __m256i half = _mm256_set1_epi32(1 << (bits - 1));
    return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(a.low, half), bits),
                              _mm256_srai_epi32(_mm256_add_epi32(a.high, half), bits));
}

/* Rows to columns. */
static ALWAYS_INLINE AVX2 void transpose(__m256i v[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            b[4 * i + 2 * k] = _mm256_unpacklo_epi32(a[4 * i + k], a[4 * i + 2 + k]);
            b[4 * i + 2 * k + 1] = _mm256_unpackhi_epi32(a[4 * i + k], a[4 * i + 2 + k]);
        }
    }
    for (int k = 0; k < 4; k++) {
        v[2 * k] = _mm256_unpacklo_epi64(b[k], b[4 + k]);
        v[2 * k + 1] = _mm256_unpackhi_epi64(b[k], b[4 + k]);
    }
}

#endif

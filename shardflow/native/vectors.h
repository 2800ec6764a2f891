/* The AVX2 operations on 32 bytes that the kernel uses, in vector types of GCC and clang, for little-endian processors
 * without AVX2. Names and meanings are Intel's. */
#ifndef SHARDFLOW_VECTORS_H
#define SHARDFLOW_VECTORS_H

#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* no vector is passed between files */

#ifndef __clang__
#define MIXED(type, a, b, ...) ((__m256i)__builtin_shuffle((type)(a), (type)(b), (type){__VA_ARGS__}))
#else
#define MIXED(type, a, b, ...) ((__m256i)__builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__))
#endif

typedef long long __m256i __attribute__((vector_size(32)));
typedef int8_t sf_bytes __attribute__((vector_size(32)));
typedef int16_t sf_shorts __attribute__((vector_size(32)));
typedef uint16_t sf_ushorts __attribute__((vector_size(32)));
typedef int32_t sf_ints __attribute__((vector_size(32)));
typedef uint32_t sf_uints __attribute__((vector_size(32)));

#define BY_LANES(type, a, operation, b) ((__m256i)((type)(a) operation (type)(b)))
#define _mm256_add_epi16(a, b) BY_LANES(sf_ushorts, a, +, b)
#define _mm256_sub_epi16(a, b) BY_LANES(sf_ushorts, a, -, b)
#define _mm256_mullo_epi16(a, b) BY_LANES(sf_ushorts, a, *, b)
#define _mm256_add_epi32(a, b) BY_LANES(sf_uints, a, +, b)
#define _mm256_sub_epi32(a, b) BY_LANES(sf_uints, a, -, b)
#define _mm256_cmpeq_epi64(a, b) BY_LANES(__m256i, a, ==, b)
#define _mm256_cmpgt_epi16(a, b) BY_LANES(sf_shorts, a, >, b)
#define _mm256_cmpgt_epi32(a, b) BY_LANES(sf_ints, a, >, b)
#define _mm256_and_si256(a, b) BY_LANES(__m256i, a, &, b)
#define _mm256_or_si256(a, b) BY_LANES(__m256i, a, |, b)
#define _mm256_xor_si256(a, b) BY_LANES(__m256i, a, ^, b)
#define _mm256_blendv_epi8(a, b, mask) (((a) & ~(mask)) | ((b) & (mask))) /* if all bits of a mask lane are equal */
#define _mm256_slli_epi16(a, bits) ((__m256i)((sf_ushorts)(a) << (bits)))
#define _mm256_srli_epi16(a, bits) ((__m256i)((sf_ushorts)(a) >> (bits)))
#define _mm256_srai_epi16(a, bits) ((__m256i)((sf_shorts)(a) >> (bits)))
#define _mm256_slli_epi32(a, bits) ((__m256i)((sf_uints)(a) << (bits)))
#define _mm256_srai_epi32(a, bits) ((__m256i)((sf_ints)(a) >> (bits)))
#define _mm256_setzero_si256() ((__m256i){0})
#define _mm256_set1_epi8(a) ((__m256i)((sf_bytes){0} + (int8_t)(a)))
#define _mm256_set1_epi16(a) ((__m256i)((sf_shorts){0} + (int16_t)(a)))
#define _mm256_set1_epi32(a) ((__m256i)((sf_ints){0} + (int32_t)(a)))
#define _mm256_setr_epi16(...) ((__m256i)(sf_shorts){__VA_ARGS__})
#define _mm256_shuffle_epi32(a, order) MIXED(__m256i, a, a, 1, 0, 3, 2) /* only for 0x4E */
#define _mm256_unpacklo_epi64(a, b) MIXED(__m256i, a, b, 0, 4, 2, 6)
#define _mm256_unpackhi_epi64(a, b) MIXED(__m256i, a, b, 1, 5, 3, 7)
#define _mm256_unpacklo_epi32(a, b) MIXED(sf_ints, a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define _mm256_unpackhi_epi32(a, b) MIXED(sf_ints, a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define _mm256_unpacklo_epi16(a, b) MIXED(sf_shorts, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27)
#define _mm256_unpackhi_epi16(a, b) MIXED(sf_shorts, a, b, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31)
#define _mm256_unpacklo_epi8(a, b)                                                                                    \
    MIXED(sf_bytes, a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, \
          21, 53, 22, 54, 23, 55)
#define _mm256_unpackhi_epi8(a, b)                                                                                        \
    MIXED(sf_bytes, a, b, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 24, 56, 25, 57, 26, 58, 27, 59, 28, \
          60, 29, 61, 30, 62, 31, 63)
#define _mm256_permute2x128_si256(a, b, which) ((which) == 0x20 ? MIXED(__m256i, a, b, 0, 1, 4, 5) : MIXED(__m256i, a, b, 2, 3, 6, 7))

/* 16-bit lanes as 32-bit lanes: the even ones, and the odd ones. */
#define EVEN(a) ((sf_uints)_mm256_srai_epi32(_mm256_slli_epi32(a, 16), 16))
#define ODD(a) ((sf_uints)_mm256_srai_epi32(a, 16))
#define LOW_HALVES(a, b) MIXED(sf_shorts, a, b, 0, 2, 4, 6, 16, 18, 20, 22, 8, 10, 12, 14, 24, 26, 28, 30)
#define LOW_BYTES(a, b)                                                                                                     \
    MIXED(sf_bytes, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 32, 34, 36, 38, 40, 42, 44, 46, 16, 18, 20, 22, 24, 26, 28, 30, 48, 50, \
          52, 54, 56, 58, 60, 62)

static inline __m256i sf_clamped16(__m256i a, int least, int most) {
    const __m256i low = _mm256_set1_epi16(least), high = _mm256_set1_epi16(most);
    a = _mm256_blendv_epi8(a, low, _mm256_cmpgt_epi16(low, a));
    return _mm256_blendv_epi8(a, high, _mm256_cmpgt_epi16(a, high));
}

static inline __m256i sf_clamped32(__m256i a) {
    const __m256i low = _mm256_set1_epi32(INT16_MIN), high = _mm256_set1_epi32(INT16_MAX);
    a = _mm256_blendv_epi8(a, low, _mm256_cmpgt_epi32(low, a));
    return _mm256_blendv_epi8(a, high, _mm256_cmpgt_epi32(a, high));
}

#define _mm256_packs_epi32(a, b) LOW_HALVES(sf_clamped32(a), sf_clamped32(b))
#define _mm256_packs_epi16(a, b) LOW_BYTES(sf_clamped16(a, -128, 127), sf_clamped16(b, -128, 127))
#define _mm256_packus_epi16(a, b) LOW_BYTES(sf_clamped16(a, 0, 255), sf_clamped16(b, 0, 255))
#define _mm256_madd_epi16(a, b) ((__m256i)(EVEN(a) * EVEN(b) + ODD(a) * ODD(b)))
#define _mm256_hadd_epi32(a, b) \
    _mm256_add_epi32(MIXED(sf_ints, a, b, 0, 2, 8, 10, 4, 6, 12, 14), MIXED(sf_ints, a, b, 1, 3, 9, 11, 5, 7, 13, 15))

static inline __m256i _mm256_mulhrs_epi16(__m256i a, __m256i b) {
    const sf_ints even = (sf_ints)(EVEN(a) * EVEN(b) + 0x4000) >> 15, odd = (sf_ints)(ODD(a) * ODD(b) + 0x4000) >> 15;
    return (__m256i)(((sf_uints)even & 0xFFFF) | (sf_uints)odd << 16);
}

static inline int _mm256_testz_si256(__m256i a, __m256i b) {
    const __m256i both = a & b;
    return !(both[0] | both[1] | both[2] | both[3]);
}

static inline __m256i _mm256_loadu_si256(const void *at) {
    __m256i a;
    memcpy(&a, at, sizeof a);
    return a;
}

static inline void _mm256_storeu_si256(void *at, __m256i a) { memcpy(at, &a, sizeof a); }

static inline __m256i sf_load_halves(const void *low, const void *high) {
    __m256i a;
    memcpy(&a, low, 16);
    memcpy((uint8_t *)&a + 16, high, 16);
    return a;
}

/* Store eight bytes at each address. */
static inline void sf_store_quarters(__m256i a, uint8_t *const to[4]) {
    for (int i = 0; i < 4; i++) memcpy(to[i], (const uint8_t *)&a + 8 * i, 8);
}

static inline __m256i sf_load_bytes(const uint8_t *at) { /* 16 bytes, as 16-bit lanes */
    sf_shorts a;
    for (int i = 0; i < 16; i++) a[i] = at[i];
    return (__m256i)a;
}

#endif

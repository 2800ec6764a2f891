#include "fdct.h"

#include "blocks.h"

enum { CENTRE = 128 };

/* The reciprocal of d = 8 * step is 2^(16 + s) / d rounded up, with s such that it has 16 bits. Its relative error is below
 * 2^-16, so the quotient of a number below 2^15 is exact. No coefficient plus half of d is larger. */
void sf_quantiser_set(sf_quantiser *q, const uint8_t steps[DCTSIZE2]) {
    for (int i = 0; i < DCTSIZE2; i++) {
        const uint32_t divisor = (uint32_t)DCTSIZE * steps[i]; /* the transform's scale is 8 */
        const unsigned s = 31 - (unsigned)__builtin_clz(divisor - 1);
        q->half[i] = (uint16_t)(divisor / 2);
        q->reciprocal[i] = (uint16_t)(((1u << (16 + s)) + divisor - 1) / divisor);
        q->shift[i] = (uint16_t)(1u << (16 - s));
    }
}

/* ---- plain C ---- */

static int32_t descale(int32_t sum, int bits) { return (sum + (1 << (bits - 1))) >> bits; }

/* Transform eight values that are `step` apart. The first pass scales values up by PASS1_BITS, and the second pass scales
 * them down again. */
static void transform_line(int32_t *v, int step, bool is_second) {
    const int bits = is_second ? CONST_BITS + PASS1_BITS : CONST_BITS - PASS1_BITS;
    int32_t sums[4], t[8];
    for (int i = 0; i < 4; i++) {
        sums[i] = v[i * step] + v[(7 - i) * step];
        t[7 - i] = v[i * step] - v[(7 - i) * step];
    }
    const int32_t t10 = sums[0] + sums[3], t13 = sums[0] - sums[3], t11 = sums[1] + sums[2], t12 = sums[1] - sums[2];
    v[0 * step] = is_second ? descale(t10 + t11, PASS1_BITS) : (t10 + t11) * (1 << PASS1_BITS);
    v[4 * step] = is_second ? descale(t10 - t11, PASS1_BITS) : (t10 - t11) * (1 << PASS1_BITS);
    v[2 * step] = descale(t13 * (F_0_541 + F_0_765) + t12 * F_0_541, bits);
    v[6 * step] = descale(t13 * F_0_541 + t12 * (F_0_541 - F_1_847), bits);

    const int32_t a = t[4] + t[6], b = t[5] + t[7];
    const int32_t z3 = a * (F_1_175 - F_1_961) + b * F_1_175, z4 = a * F_1_175 + b * (F_1_175 - F_0_390);
    v[7 * step] = descale(t[4] * (F_0_298 - F_0_899) - t[7] * F_0_899 + z3, bits);
    v[5 * step] = descale(t[5] * (F_2_053 - F_2_562) - t[6] * F_2_562 + z4, bits);
    v[3 * step] = descale(t[6] * (F_3_072 - F_2_562) - t[5] * F_2_562 + z3, bits);
    v[1 * step] = descale(t[7] * (F_1_501 - F_0_899) - t[4] * F_0_899 + z4, bits);
}

static void quantise(const int32_t values[DCTSIZE2], const sf_quantiser *q, sf_block *block) {
    block->set = 0;
    for (int i = 0; i < DCTSIZE2; i++) {
        const uint32_t size = (uint32_t)(values[i] < 0 ? -values[i] : values[i]);
        const int32_t quotient = (int32_t)(((size + q->half[i]) * q->reciprocal[i] >> 16) * q->shift[i] >> 16);
        block->values[i] = (int16_t)(values[i] < 0 ? -quotient : quotient);
        block->set |= (uint64_t)(quotient != 0) << i;
    }
}

static void fdct_plain(const uint8_t *const rows[DCTSIZE], int32_t count, const sf_quantiser *q, sf_block *blocks) {
    for (int32_t k = 0; k < count; k++) {
        int32_t values[DCTSIZE2];
        for (int i = 0; i < DCTSIZE2; i++) values[i] = rows[i / DCTSIZE][DCTSIZE * k + i % DCTSIZE] - CENTRE;
        for (int i = 0; i < DCTSIZE; i++) transform_line(values + DCTSIZE * i, 1, false);
        for (int i = 0; i < DCTSIZE; i++) transform_line(values + i, DCTSIZE, true);
        quantise(values, q, &blocks[k]);
    }
}

/* ---- AVX2 ---- */

#ifdef SF_HAVE_AVX2

static ALWAYS_INLINE AVX2 __m256i sum_of(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
static ALWAYS_INLINE AVX2 __m256i difference_of(__m256i a, __m256i b) { return _mm256_sub_epi16(a, b); }

/* No 16-bit sum overflows: a black block has the largest, -2^15. */
static ALWAYS_INLINE AVX2 void transform(__m256i v[8], bool is_second) {
    const int bits = is_second ? CONST_BITS + PASS1_BITS : CONST_BITS - PASS1_BITS;
    const __m256i s0 = sum_of(v[0], v[7]), s1 = sum_of(v[1], v[6]), s2 = sum_of(v[2], v[5]), s3 = sum_of(v[3], v[4]);
    const __m256i t7 = difference_of(v[0], v[7]), t6 = difference_of(v[1], v[6]);
    const __m256i t5 = difference_of(v[2], v[5]), t4 = difference_of(v[3], v[4]);
    const __m256i t10 = sum_of(s0, s3), t13 = difference_of(s0, s3), t11 = sum_of(s1, s2), t12 = difference_of(s1, s2);
    const __m256i half = _mm256_set1_epi16(1 << (PASS1_BITS - 1));
    const __m256i v0 = sum_of(t10, t11), v4 = difference_of(t10, t11);
    v[0] = is_second ? _mm256_srai_epi16(sum_of(v0, half), PASS1_BITS) : _mm256_slli_epi16(v0, PASS1_BITS);
    v[4] = is_second ? _mm256_srai_epi16(sum_of(v4, half), PASS1_BITS) : _mm256_slli_epi16(v4, PASS1_BITS);
    const wide even = interleave(t13, t12);
    v[2] = descaled(products(even, F_0_541 + F_0_765, F_0_541), bits);
    v[6] = descaled(products(even, F_0_541, F_0_541 - F_1_847), bits);

    const wide in = interleave(sum_of(t4, t6), sum_of(t5, t7)), in47 = interleave(t4, t7), in56 = interleave(t5, t6);
    const wide z3 = products(in, F_1_175 - F_1_961, F_1_175), z4 = products(in, F_1_175, F_1_175 - F_0_390);
    v[7] = descaled(plus(products(in47, F_0_298 - F_0_899, -F_0_899), z3), bits);
    v[5] = descaled(plus(products(in56, F_2_053 - F_2_562, -F_2_562), z4), bits);
    v[3] = descaled(plus(products(in56, -F_2_562, F_3_072 - F_2_562), z3), bits);
    v[1] = descaled(plus(products(in47, -F_0_899, F_1_501 - F_0_899), z4), bits);
}

static ALWAYS_INLINE AVX2 __m256i both(const uint16_t *row) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)row));
}

static AVX2 void fdct_avx2(const uint8_t *const rows[DCTSIZE], int32_t count, const sf_quantiser *q, sf_block *blocks) {
    const __m256i centre = _mm256_set1_epi16(CENTRE), zero = _mm256_setzero_si256();
    for (int32_t k = 0; k < count; k += 2) {
        sf_block *const a = &blocks[k], *const b = &blocks[k + 1];
        __m256i v[8];
        for (int i = 0; i < 8; i++) {
            const __m128i samples = _mm_loadu_si128((const __m128i *)(rows[i] + DCTSIZE * k));
            v[i] = difference_of(_mm256_cvtepu8_epi16(samples), centre);
        }
        transpose(v);
        transform(v, false);
        transpose(v);
        transform(v, true);
        a->set = b->set = 0;
        for (int i = 0; i < 8; i++) {
            const __m256i sum = sum_of(_mm256_abs_epi16(v[i]), both(q->half + 8 * i));
            const __m256i quotient = _mm256_mulhi_epu16(_mm256_mulhi_epu16(sum, both(q->reciprocal + 8 * i)), both(q->shift + 8 * i));
            v[i] = _mm256_sign_epi16(quotient, v[i]);
            _mm_store_si128((__m128i *)(a->values + 8 * i), _mm256_castsi256_si128(v[i]));
            _mm_store_si128((__m128i *)(b->values + 8 * i), _mm256_extracti128_si256(v[i], 1));
        }
        for (int i = 0; i < 8; i += 2) {
            const __m256i is_zero = _mm256_cmpeq_epi8(_mm256_packs_epi16(v[i], v[i + 1]), zero);
            const uint32_t set = ~(uint32_t)_mm256_movemask_epi8(is_zero);
            a->set |= (uint64_t)(set & 0xFFFF) << 8 * i;
            b->set |= (uint64_t)(set >> 16) << 8 * i;
        }
    }
}

#endif

sf_fdct *sf_fdct_choose(bool simd) {
#ifdef SF_HAVE_AVX2
    if (simd && sf_has_avx2()) return fdct_avx2;
#endif
    (void)simd;
    return fdct_plain;
}

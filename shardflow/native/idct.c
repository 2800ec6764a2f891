#include "idct.h"

#include <string.h>

#include "blocks.h"

/* A block on its way. */
typedef struct {
    int16_t *block;
    const int16_t *steps;
    int samples;
    uint8_t *out;
    size_t stride;
} job;

static ALWAYS_INLINE job job_of(const sf_target *target, int32_t column, int32_t slot, int16_t *block) {
    uint8_t *const out = target->out + (size_t)column * target->column + (size_t)slot * target->slot;
    return (job){block, target->steps, target->samples, out, target->stride};
}

/* ---- in plain C ---- */

/* Products and their sums, which wrap around. */
static ALWAYS_INLINE uint32_t times(int16_t a, int by) { return (uint32_t)(a * by); }

static ALWAYS_INLINE int32_t rounded(uint32_t sum, int bits) { return (int32_t)(sum + (1u << (bits - 1))) >> bits; }

static ALWAYS_INLINE int16_t saturated(int32_t value) {
    return (int16_t)(value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value);
}

static ALWAYS_INLINE uint8_t sample_of(int32_t value) { return (uint8_t)(value < -128 ? 0 : value > 127 ? 255 : value + 128); }

static ALWAYS_INLINE int16_t shifted(int16_t value) { return (int16_t)(value * (1 << PASS1_BITS)); }

/* Both passes of a transform are this one, of the columns of `v`. */
static ALWAYS_INLINE void transform_columns(int16_t v[DCTSIZE][DCTSIZE], int bits) {
    for (int i = 0; i < DCTSIZE; i++) {
        const int16_t v1 = v[1][i], v2 = v[2][i], v3 = v[3][i], v5 = v[5][i], v6 = v[6][i], v7 = v[7][i];
        const uint32_t even0 = times((int16_t)(v[0][i] + v[4][i]), 1 << CONST_BITS);
        const uint32_t even1 = times((int16_t)(v[0][i] - v[4][i]), 1 << CONST_BITS);
        const uint32_t even2 = times(v2, F_0_541) + times(v6, F_0_541 - F_1_847);
        const uint32_t even3 = times(v2, F_0_541 + F_0_765) + times(v6, F_0_541);
        const uint32_t even[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};

        const int16_t sum73 = (int16_t)(v7 + v3), sum51 = (int16_t)(v5 + v1);
        const uint32_t z3 = times(sum73, F_1_175 - F_1_961) + times(sum51, F_1_175);
        const uint32_t z4 = times(sum73, F_1_175) + times(sum51, F_1_175 - F_0_390);
        const uint32_t odd[4] = {
            times(v7, -F_0_899) + times(v1, F_1_501 - F_0_899) + z4,
            times(v5, -F_2_562) + times(v3, F_3_072 - F_2_562) + z3,
            times(v5, F_2_053 - F_2_562) + times(v3, -F_2_562) + z4,
            times(v7, F_0_298 - F_0_899) + times(v1, -F_0_899) + z3,
        };
        for (int k = 0; k < 4; k++) {
            v[k][i] = saturated(rounded(even[k] + odd[k], bits));
            v[7 - k][i] = saturated(rounded(even[k] - odd[k], bits));
        }
    }
}

static void multiply(const job *j, int16_t v[DCTSIZE][DCTSIZE]) {
    for (int i = 0; i < DCTSIZE2; i++) v[i / DCTSIZE][i % DCTSIZE] = (int16_t)(j->block[i] * j->steps[i]);
}

static bool has_rows(const job *j, unsigned rows) {
    uint64_t any = 0, part;
    for (int row = 0; row < DCTSIZE; row++) {
        for (int half = 0; half < 2 && rows >> row & 1; half++) {
            memcpy(&part, j->block + DCTSIZE * row + 4 * half, sizeof part);
            any |= part;
        }
    }
    return any;
}

static void to_8x8(const job *j) {
    int16_t v[DCTSIZE][DCTSIZE], w[DCTSIZE][DCTSIZE];
    multiply(j, v);
    if (has_rows(j, 0xFE)) {
        transform_columns(v, CONST_BITS - PASS1_BITS);
    } else { /* the same, but for values that no encoder makes */
        for (int i = DCTSIZE2 - 1; i >= 0; i--) v[i / DCTSIZE][i % DCTSIZE] = shifted(v[0][i % DCTSIZE]);
    }
    for (int i = 0; i < DCTSIZE2; i++) w[i % DCTSIZE][i / DCTSIZE] = v[i / DCTSIZE][i % DCTSIZE];
    transform_columns(w, CONST_BITS + PASS1_BITS + 3);
    for (int y = 0; y < DCTSIZE; y++) {
        for (int x = 0; x < DCTSIZE; x++) j->out[(size_t)y * j->stride + (size_t)x] = sample_of(w[x][y]);
    }
}

/* jidctred.c: four values of eight, of which the fifth counts for nothing. */
static ALWAYS_INLINE void reduce_to_4(const int16_t in[DCTSIZE], int bits, int32_t out[4]) {
    const uint32_t even0 = times(in[0], 1 << (CONST_BITS + 1)), even1 = times(in[2], F_1_847) - times(in[6], F_0_765);
    const uint32_t odd0 = times(in[1], F_1_061) - times(in[3], F_2_172) + times(in[5], F_1_451) - times(in[7], F_0_211);
    const uint32_t odd1 = times(in[1], F_2_562) + times(in[3], F_0_899) - times(in[5], F_0_601) - times(in[7], F_0_509);
    out[0] = rounded(even0 + even1 + odd1, bits);
    out[1] = rounded(even0 - even1 + odd0, bits);
    out[2] = rounded(even0 - even1 - odd0, bits);
    out[3] = rounded(even0 + even1 - odd1, bits);
}

static void to_4x4(const job *j) {
    int16_t v[DCTSIZE][DCTSIZE], rows[4][DCTSIZE];
    int32_t out[4];
    multiply(j, v);
    const bool has_more = has_rows(j, 0xEE);
    for (int x = 0; x < DCTSIZE; x++) {
        const int16_t column[DCTSIZE] = {v[0][x], v[1][x], v[2][x], v[3][x], v[4][x], v[5][x], v[6][x], v[7][x]};
        reduce_to_4(column, CONST_BITS - PASS1_BITS + 1, out);
        for (int y = 0; y < 4; y++) rows[y][x] = has_more ? saturated(out[y]) : shifted(v[0][x]);
    }
    for (int y = 0; y < 4; y++) {
        reduce_to_4(rows[y], CONST_BITS + PASS1_BITS + 3 + 1, out);
        for (int x = 0; x < 4; x++) j->out[(size_t)y * j->stride + (size_t)x] = sample_of(out[x]);
    }
}

/* What the odd values add to the first of two, and take from the second. */
static ALWAYS_INLINE uint32_t odd_of_2(int16_t v1, int16_t v3, int16_t v5, int16_t v7) {
    return times(v1, F_3_624) - times(v3, F_1_272) + times(v5, F_0_850) - times(v7, F_0_720);
}

static void to_2x2(const job *j) {
    uint32_t first[2] = {0}; /* is not cut to 16 bits */
    int16_t odd[2][4] = {{0}}, v[4];
    for (int i = 0; i < 5; i++) {
        const int x = i ? 2 * i - 1 : 0;
        for (int k = 0; k < 4; k++) {
            const int at = DCTSIZE * (2 * k + 1) + x;
            v[k] = (int16_t)(j->block[at] * j->steps[at]);
        }
        const uint32_t even = times((int16_t)(j->block[x] * j->steps[x]), 1 << (CONST_BITS + 2));
        const uint32_t change = odd_of_2(v[0], v[1], v[2], v[3]);
        for (int y = 0; y < 2; y++) {
            const int32_t sum = rounded(y ? even - change : even + change, CONST_BITS - PASS1_BITS + 2);
            if (i) odd[y][i - 1] = saturated(sum);
            else first[y] = (uint32_t)sum << (CONST_BITS + 2);
        }
    }
    for (int y = 0; y < 2; y++) {
        const uint32_t change = odd_of_2(odd[y][0], odd[y][1], odd[y][2], odd[y][3]);
        uint8_t *const out = j->out + (size_t)y * j->stride;
        out[0] = sample_of(rounded(first[y] + change, CONST_BITS + PASS1_BITS + 3 + 2));
        out[1] = sample_of(rounded(first[y] - change, CONST_BITS + PASS1_BITS + 3 + 2));
    }
}

/* In ten bits, as libjpeg-turbo looks it up. */
static void to_1x1(const job *j) {
    const int32_t mean = (j->block[0] * j->steps[0] + 4) >> 3;
    j->out[0] = sample_of(((mean & 1023) ^ 512) - 512);
}

static void transform(const job *j) {
    switch (j->samples) {
    case 1: to_1x1(j); break;
    case 2: to_2x2(j); break;
    case 4: to_4x4(j); break;
    default: to_8x8(j);
    }
}

static void transform_plainly(const sf_target *targets, int count, int32_t column, int32_t slot, sf_coefficients *blocks) {
    for (int i = 0; i < count; i++) {
        const job j = job_of(&targets[i], column, slot, blocks[i]);
        transform(&j);
    }
    memset(blocks, 0, sizeof *blocks * (size_t)count);
}

#ifdef SF_HAVE_AVX2

/* ---- in vectors, two blocks at once, one in each half ---- */

/* Values times 2^bits. */
static ALWAYS_INLINE AVX2 wide scaled(__m256i a, int bits) {
    const wide high = interleave(_mm256_setzero_si256(), a);
    return (wide){_mm256_srai_epi32(high.low, 16 - bits), _mm256_srai_epi32(high.high, 16 - bits)};
}

/* Outputs from the sums of the even and of the odd inputs. */
static ALWAYS_INLINE AVX2 void combine(const wide even[4], const wide odd[4], int bits, __m256i v[8]) {
    for (int i = 0; i < 4; i++) {
        v[i] = descaled(plus(even[i], odd[i]), bits);
        v[7 - i] = descaled(minus(even[i], odd[i]), bits);
    }
}

static ALWAYS_INLINE AVX2 void transform_vectors(__m256i v[8], int bits) {
    const wide in26 = interleave(v[2], v[6]);
    const wide even0 = scaled(_mm256_add_epi16(v[0], v[4]), CONST_BITS);
    const wide even1 = scaled(_mm256_sub_epi16(v[0], v[4]), CONST_BITS);
    const wide even2 = products(in26, F_0_541, F_0_541 - F_1_847), even3 = products(in26, F_0_541 + F_0_765, F_0_541);
    const wide even[4] = {plus(even0, even3), plus(even1, even2), minus(even1, even2), minus(even0, even3)};

    const wide in34 = interleave(_mm256_add_epi16(v[7], v[3]), _mm256_add_epi16(v[5], v[1]));
    const wide z3 = products(in34, F_1_175 - F_1_961, F_1_175), z4 = products(in34, F_1_175, F_1_175 - F_0_390);
    const wide in71 = interleave(v[7], v[1]), in53 = interleave(v[5], v[3]);
    const wide odd[4] = {
        plus(products(in71, -F_0_899, F_1_501 - F_0_899), z4), plus(products(in53, -F_2_562, F_3_072 - F_2_562), z3),
        plus(products(in53, F_2_053 - F_2_562, -F_2_562), z4), plus(products(in71, F_0_298 - F_0_899, -F_0_899), z3),
    };
    combine(even, odd, bits, v);
}

static ALWAYS_INLINE AVX2 __m256i two(const int16_t *a, const int16_t *b) {
    const __m128i low = _mm_load_si128((const __m128i *)a), high = _mm_load_si128((const __m128i *)b);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static ALWAYS_INLINE AVX2 void store_pair(__m256i rows, const job *a, const job *b, int first) {
    const __m128i low = _mm256_castsi256_si128(rows), high = _mm256_extracti128_si256(rows, 1);
    _mm_storel_epi64((__m128i *)(a->out + (size_t)first * a->stride), low);
    _mm_storeh_pd((double *)(void *)(a->out + (size_t)(first + 1) * a->stride), _mm_castsi128_pd(low));
    _mm_storel_epi64((__m128i *)(b->out + (size_t)first * b->stride), high);
    _mm_storeh_pd((double *)(void *)(b->out + (size_t)(first + 1) * b->stride), _mm_castsi128_pd(high));
}

/* Load two blocks multiplied with their steps. The mask of a half is set where it has no coefficients in rows that count. */
static ALWAYS_INLINE AVX2 __m256i load_pair(const job *a, const job *b, unsigned rows, __m256i v[8]) {
    __m256i rest = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        v[i] = two(a->block + 8 * i, b->block + 8 * i);
        if (rows >> i & 1) rest = _mm256_or_si256(rest, v[i]);
        v[i] = _mm256_mullo_epi16(v[i], two(a->steps + 8 * i, b->steps + 8 * i));
    }
    const __m256i whole = _mm256_or_si256(rest, _mm256_shuffle_epi32(rest, 0x4E));
    return _mm256_cmpeq_epi64(whole, _mm256_setzero_si256());
}

static AVX2 void pair_to_8x8(const job *a, const job *b) {
    __m256i v[8];
    const __m256i is_zero = load_pair(a, b, 0xFE, v);
    /* Where only the first row has coefficients the first pass is a shift there too, which differs for values that no
     * encoder makes. */
    const __m256i shifted = _mm256_slli_epi16(v[0], PASS1_BITS);
    transform_vectors(v, CONST_BITS - PASS1_BITS);
    for (int i = 0; i < 8; i++) v[i] = _mm256_blendv_epi8(v[i], shifted, is_zero);
    transpose(v);
    transform_vectors(v, CONST_BITS + PASS1_BITS + 3);
    const __m256i p04 = _mm256_packs_epi16(v[0], v[4]), p15 = _mm256_packs_epi16(v[1], v[5]);
    const __m256i p26 = _mm256_packs_epi16(v[2], v[6]), p37 = _mm256_packs_epi16(v[3], v[7]);
    const __m256i c01 = _mm256_unpacklo_epi8(p04, p15), c45 = _mm256_unpackhi_epi8(p04, p15);
    const __m256i c23 = _mm256_unpacklo_epi8(p26, p37), c67 = _mm256_unpackhi_epi8(p26, p37);
    const __m256i top03 = _mm256_unpacklo_epi16(c01, c23), bottom03 = _mm256_unpackhi_epi16(c01, c23);
    const __m256i top47 = _mm256_unpacklo_epi16(c45, c67), bottom47 = _mm256_unpackhi_epi16(c45, c67);
    const __m256i middle = _mm256_set1_epi8(-128);
    store_pair(_mm256_xor_si256(_mm256_unpacklo_epi32(top03, top47), middle), a, b, 0);
    store_pair(_mm256_xor_si256(_mm256_unpackhi_epi32(top03, top47), middle), a, b, 2);
    store_pair(_mm256_xor_si256(_mm256_unpacklo_epi32(bottom03, bottom47), middle), a, b, 4);
    store_pair(_mm256_xor_si256(_mm256_unpackhi_epi32(bottom03, bottom47), middle), a, b, 6);
}

/* Sums of products of four vectors. */
static ALWAYS_INLINE AVX2 wide products_of_4(wide in13, wide in57, int by1, int by3, int by5, int by7) {
    return plus(products(in13, by1, by3), products(in57, by5, by7));
}

static ALWAYS_INLINE AVX2 void reduce_vectors_to_4(__m256i v[8], int bits) {
    const wide in13 = interleave(v[1], v[3]), in57 = interleave(v[5], v[7]);
    const wide even0 = scaled(v[0], CONST_BITS + 1), even1 = products(interleave(v[2], v[6]), F_1_847, -F_0_765);
    const wide odd0 = products_of_4(in13, in57, F_1_061, -F_2_172, F_1_451, -F_0_211);
    const wide odd1 = products_of_4(in13, in57, F_2_562, F_0_899, -F_0_601, -F_0_509);
    const wide sum = plus(even0, even1), difference = minus(even0, even1);
    v[0] = descaled(plus(sum, odd1), bits);
    v[1] = descaled(plus(difference, odd0), bits);
    v[2] = descaled(minus(difference, odd0), bits);
    v[3] = descaled(minus(sum, odd1), bits);
}

static AVX2 void pair_to_4x4(const job *a, const job *b) {
    __m256i v[8];
    const __m256i is_zero = load_pair(a, b, 0xEE, v), first = _mm256_slli_epi16(v[0], PASS1_BITS);
    reduce_vectors_to_4(v, CONST_BITS - PASS1_BITS + 1);
    for (int i = 0; i < 4; i++) v[i] = _mm256_blendv_epi8(v[i], first, is_zero);
    for (int i = 4; i < 8; i++) v[i] = _mm256_setzero_si256();
    transpose(v);
    reduce_vectors_to_4(v, CONST_BITS + PASS1_BITS + 3 + 1);
    const __m256i columns01 = _mm256_unpacklo_epi16(v[0], v[1]), columns23 = _mm256_unpacklo_epi16(v[2], v[3]);
    const __m256i rows01 = _mm256_unpacklo_epi32(columns01, columns23);
    const __m256i rows = _mm256_packs_epi16(rows01, _mm256_unpackhi_epi32(columns01, columns23));
    uint8_t samples[32];
    _mm256_storeu_si256((__m256i *)samples, _mm256_xor_si256(rows, _mm256_set1_epi8(-128)));
    for (size_t y = 0; y < 4; y++) {
        memcpy(a->out + y * a->stride, samples + 4 * y, 4);
        memcpy(b->out + y * b->stride, samples + 16 + 4 * y, 4);
    }
}

static AVX2 void pair_to_2x2(const job *a, const job *b) {
    const __m256i by = _mm256_setr_epi16(0, F_3_624, 0, -F_1_272, 0, F_0_850, 0, -F_0_720, /* the same for the other block */
                                         0, F_3_624, 0, -F_1_272, 0, F_0_850, 0, -F_0_720);
    const __m256i half = _mm256_set1_epi32(1 << (CONST_BITS - PASS1_BITS + 1));
    __m256i v[8];
    load_pair(a, b, 0, v);
    const wide even = scaled(v[0], CONST_BITS + 2);
    const wide odd = products_of_4(interleave(v[1], v[3]), interleave(v[5], v[7]), F_3_624, -F_1_272, F_0_850, -F_0_720);
    const wide sums[2] = {plus(even, odd), minus(even, odd)};
    __m256i first[2], change[2];
    for (int y = 0; y < 2; y++) {
        first[y] = _mm256_srai_epi32(_mm256_add_epi32(sums[y].low, half), CONST_BITS - PASS1_BITS + 2);
        change[y] = _mm256_madd_epi16(descaled(sums[y], CONST_BITS - PASS1_BITS + 2), by);
    }
    __m256i changes = _mm256_hadd_epi32(change[0], change[1]);
    changes = _mm256_hadd_epi32(changes, changes); /* of the first row, and of the second */
    const __m256i means = _mm256_slli_epi32(_mm256_unpacklo_epi32(first[0], first[1]), CONST_BITS + 2);
    const __m256i left = _mm256_add_epi32(means, changes), right = _mm256_sub_epi32(means, changes);
    const __m256i all = _mm256_unpacklo_epi32(left, right), round = _mm256_set1_epi32(1 << (CONST_BITS + PASS1_BITS + 4));
    const __m256i made = _mm256_srai_epi32(_mm256_add_epi32(all, round), CONST_BITS + PASS1_BITS + 5);
    const __m256i words = _mm256_packs_epi32(made, made);
    uint8_t samples[32];
    _mm256_storeu_si256((__m256i *)samples, _mm256_xor_si256(_mm256_packs_epi16(words, words), _mm256_set1_epi8(-128)));
    for (size_t y = 0; y < 2; y++) {
        memcpy(a->out + y * a->stride, samples + 2 * y, 2);
        memcpy(b->out + y * b->stride, samples + 16 + 2 * y, 2);
    }
}

static AVX2 void transform_in_pairs(const sf_target *targets, int count, int32_t column, int32_t slot,
                                    sf_coefficients *blocks) {
    job jobs[MAX_BLOCKS_IN_MCU + 1];
    for (int i = 0; i < count; i++) jobs[i] = job_of(&targets[i], column, slot, blocks[i]);
    jobs[count] = jobs[count - 1];
    for (int i = 0; i < count;) {
        const job *const a = &jobs[i], *const b = a[1].samples == a->samples ? a + 1 : a;
        if (a->samples == DCTSIZE) pair_to_8x8(a, b);
        else if (a->samples == 4) pair_to_4x4(a, b);
        else if (a->samples == 2) pair_to_2x2(a, b);
        else to_1x1(a);
        i += a->samples == 1 || b == a ? 1 : 2;
    }
    memset(blocks, 0, sizeof *blocks * (size_t)count);
}

#endif

sf_idct *sf_idct_choose(bool simd) {
#ifdef SF_HAVE_AVX2
    if (simd && sf_has_avx2()) return transform_in_pairs;
#endif
    (void)simd;
    return transform_plainly;
}

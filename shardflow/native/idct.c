#include "idct.h"

#include <string.h>

#include "blocks.h"

/* Two blocks at once, one in each half of the vectors. */
#if defined(SF_HAVE_AVX2) || defined(SF_GENERIC)

/* A block to transform. */
typedef struct {
    int16_t *block;
    const int16_t *steps;
    uint8_t *out;
    size_t stride;
} job;

static uint8_t sample_of(int32_t value) { return (uint8_t)(value < -128 ? 0 : value > 127 ? 255 : value + 128); }

/* The mean wraps to ten bits, as in libjpeg-turbo's lookup. */
static void to_1x1(const job *j) {
    const int32_t mean = (j->block[0] * j->steps[0] + 4) >> 3;
    j->out[0] = sample_of(((mean & 1023) ^ 512) - 512);
}

/* Values times 2^bits. */
static ALWAYS_INLINE AVX2 wide scaled(__m256i a, int bits) {
    const wide high = interleave(_mm256_setzero_si256(), a);
    return (wide){_mm256_srai_epi32(high.low, 16 - bits), _mm256_srai_epi32(high.high, 16 - bits)};
}

/* The same plus half of the bits that `cut` cuts off, added once instead of to each output. */
static ALWAYS_INLINE AVX2 wide scaled_with_half(__m256i a, int bits, int cut_bits) {
    const __m256i half = _mm256_set1_epi32(1 << (cut_bits - 1));
    return plus(scaled(a, bits), (wide){half, half});
}

static ALWAYS_INLINE AVX2 __m256i cut(wide a, int bits) {
    return _mm256_packs_epi32(_mm256_srai_epi32(a.low, bits), _mm256_srai_epi32(a.high, bits));
}

/* Compute the outputs from the sums of the even and the odd inputs. */
static ALWAYS_INLINE AVX2 void combine(const wide even[4], const wide odd[4], int bits, __m256i v[8]) {
    for (int i = 0; i < 4; i++) {
        v[i] = cut(plus(even[i], odd[i]), bits);
        v[7 - i] = cut(minus(even[i], odd[i]), bits);
    }
}

static ALWAYS_INLINE AVX2 void transform_vectors(__m256i v[8], int bits) {
    const wide in26 = interleave(v[2], v[6]);
    const wide even0 = scaled_with_half(_mm256_add_epi16(v[0], v[4]), CONST_BITS, bits);
    const wide even1 = scaled_with_half(_mm256_sub_epi16(v[0], v[4]), CONST_BITS, bits);
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

static ALWAYS_INLINE AVX2 void store_pair(__m256i rows, const job *a, const job *b, size_t first) {
    uint8_t *const to[4] = {a->out + first * a->stride, a->out + (first + 1) * a->stride,
                            b->out + first * b->stride, b->out + (first + 1) * b->stride};
    sf_store_quarters(rows, to);
}

/* Load two blocks of a component, multiplied by its steps. */
static ALWAYS_INLINE AVX2 void load_pair(const job *a, const job *b, __m256i v[8]) {
    for (int i = 0; i < 8; i++) {
        const __m256i steps = sf_load_halves(a->steps + 8 * i, a->steps + 8 * i);
        v[i] = _mm256_mullo_epi16(sf_load_halves(a->block + 8 * i, b->block + 8 * i), steps);
    }
}

/* If a block has coefficients only in its first row, or in rows that are ignored, the first pass is a shift of that row. */
static __attribute__((noinline)) AVX2 void shift_first_row(const job *a, const job *b, unsigned rows, __m256i *v) {
    __m256i in[8], rest = _mm256_setzero_si256();
    load_pair(a, b, in);
    const __m256i shifted = _mm256_slli_epi16(in[0], PASS1_BITS);
    for (int i = 0; i < 8; i++) {
        if (rows >> i & 1) rest = _mm256_or_si256(rest, sf_load_halves(a->block + 8 * i, b->block + 8 * i));
    }
    const __m256i whole = _mm256_or_si256(rest, _mm256_shuffle_epi32(rest, 0x4E));
    const __m256i is_zero = _mm256_cmpeq_epi64(whole, _mm256_setzero_si256());
    for (int i = 0; i < 8; i++) v[i] = _mm256_blendv_epi8(v[i], shifted, is_zero);
}

/* Whether the shift may differ from the first pass for these blocks: only for values that no encoder writes. */
static ALWAYS_INLINE AVX2 bool shift_differs(__m256i first) {
    const __m256i back = _mm256_srai_epi16(_mm256_slli_epi16(first, PASS1_BITS), PASS1_BITS);
    const __m256i lost = _mm256_xor_si256(back, first);
    return !_mm256_testz_si256(lost, lost);
}

static AVX2 void pair_to_8x8(const job *a, const job *b) {
    __m256i v[8];
    load_pair(a, b, v);
    const bool differs = shift_differs(v[0]);
    transform_vectors(v, CONST_BITS - PASS1_BITS);
    if (RARE(differs)) shift_first_row(a, b, 0xFE, v);
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
    const wide even0 = scaled_with_half(v[0], CONST_BITS + 1, bits), even1 = products(interleave(v[2], v[6]), F_1_847, -F_0_765);
    const wide odd0 = products_of_4(in13, in57, F_1_061, -F_2_172, F_1_451, -F_0_211);
    const wide odd1 = products_of_4(in13, in57, F_2_562, F_0_899, -F_0_601, -F_0_509);
    const wide sum = plus(even0, even1), difference = minus(even0, even1);
    v[0] = cut(plus(sum, odd1), bits);
    v[1] = cut(plus(difference, odd0), bits);
    v[2] = cut(minus(difference, odd0), bits);
    v[3] = cut(minus(sum, odd1), bits);
}

static AVX2 void pair_to_4x4(const job *a, const job *b) {
    __m256i v[8];
    load_pair(a, b, v);
    const bool differs = shift_differs(v[0]);
    reduce_vectors_to_4(v, CONST_BITS - PASS1_BITS + 1);
    if (RARE(differs)) shift_first_row(a, b, 0xEE, v);
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
    load_pair(a, b, v);
    const wide even = scaled(v[0], CONST_BITS + 2);
    const wide odd = products_of_4(interleave(v[1], v[3]), interleave(v[5], v[7]), F_3_624, -F_1_272, F_0_850, -F_0_720);
    const wide sums[2] = {plus(even, odd), minus(even, odd)};
    __m256i first[2], change[2];
    for (int y = 0; y < 2; y++) {
        first[y] = _mm256_srai_epi32(_mm256_add_epi32(sums[y].low, half), CONST_BITS - PASS1_BITS + 2);
        change[y] = _mm256_madd_epi16(descaled(sums[y], CONST_BITS - PASS1_BITS + 2), by);
    }
    __m256i changes = _mm256_hadd_epi32(change[0], change[1]);
    changes = _mm256_hadd_epi32(changes, changes); /* of the first row and of the second */
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

/* A block is transformed together with the same block of the next MCU. */
AVX2 void SF_LOOPS(sf_idct)(const sf_target *targets, int count, int32_t column, int32_t slot, int mcus,
                            sf_coefficients *blocks) {
    for (int i = 0; i < count; i++) {
        const sf_target *const target = &targets[i];
        uint8_t *const out = target->out + (size_t)column * target->column + (size_t)slot * target->slot;
        const job a = {blocks[i], target->steps, out, target->stride};
        const job next = {blocks[count + i], target->steps, out + target->column, target->stride};
        const job *const b = mcus == 2 ? &next : &a;
        if (target->samples == DCTSIZE) pair_to_8x8(&a, b);
        else if (target->samples == 4) pair_to_4x4(&a, b);
        else if (target->samples == 2) pair_to_2x2(&a, b);
        else {
            to_1x1(&a);
            if (mcus == 2) to_1x1(b);
        }
    }
    memset(blocks, 0, sizeof *blocks * (size_t)(count * mcus));
}

#endif

#ifndef SF_GENERIC
sf_idct *sf_idct_choose(bool simd) {
#ifdef SF_HAVE_AVX2
    if (simd && sf_has_avx2()) return sf_idct_avx2;
#endif
    (void)simd;
    return sf_idct_generic;
}
#endif

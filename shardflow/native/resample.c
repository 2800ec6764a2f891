#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef SF_SANITIZED
#include <sanitizer/asan_interface.h>
#endif

#ifdef SF_HAVE_AVX2
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define SF_HAVE_NEON 1
#include <arm_neon.h>
#endif

/* An image within the pixel limit needs far less; this limit stops extreme ratios (one tall column, one wide output row). */
static const size_t LIMIT_BYTES = (size_t)1 << 30;
/* More memory than this is freed after an image. */
static const size_t KEEP_BYTES = (size_t)32 << 20;

/* Let a sanitizer detect accesses beyond the requested bytes: buffers are larger, and reused. */
static void fence(const sf_buffer *buffer, size_t bytes) {
#ifdef SF_SANITIZED
    ASAN_UNPOISON_MEMORY_REGION(buffer->data, buffer->bytes);
    ASAN_POISON_MEMORY_REGION((uint8_t *)buffer->data + bytes, buffer->bytes - bytes);
#endif
    (void)buffer;
    (void)bytes;
}

bool sf_reserve(sf_buffer *buffer, size_t bytes) {
    if (bytes > buffer->bytes) {
        if (bytes > LIMIT_BYTES) return false;
        sf_release(buffer);
        size_t rounded = (bytes + 4095) & ~(size_t)4095;
        buffer->data = aligned_alloc(64, rounded);
        if (!buffer->data) return false;
        buffer->bytes = rounded;
    }
    fence(buffer, bytes);
    return true;
}

bool sf_extend(sf_buffer *buffer, size_t kept, size_t bytes) {
    sf_buffer larger = {0};
    if (!sf_reserve(&larger, bytes)) return false;
    memcpy(larger.data, buffer->data, kept);
    sf_release(buffer);
    *buffer = larger;
    return true;
}

void sf_release(sf_buffer *buffer) {
    free(buffer->data);
    *buffer = (sf_buffer){0};
}

void sf_trim(sf_buffer *buffer) {
    if (buffer->bytes > KEEP_BYTES) sf_release(buffer);
}

/* ---- weights ---- */

static const double PI = 3.14159265358979323846;

static ALWAYS_INLINE double filter_support(int filter) {
    return filter == 0 ? 1.0 : filter == 1 ? 2.0 : 3.0;
}

static ALWAYS_INLINE double filter_value(int filter, double x) {
    x = fabs(x);
    if (filter == 0) return x < 1.0 ? 1.0 - x : 0.0;
    if (filter == 1) { /* Keys' cubic with a = -0.5 */
        const double a = -0.5;
        if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
        return 0.0;
    }
    if (x >= 3.0) return 0.0;
    if (x == 0.0) return 1.0;
    double t = x * PI;
    return 3.0 * sin(t) * sin(t / 3.0) / (t * t);
}

typedef struct {
    int32_t start, taps;
    double largest;
} reach;

/* Write the normalised weights of one output pixel to `weights`, at most `room` of them. */
static ALWAYS_INLINE reach weigh(int filter, const sf_span *span, double scale, int32_t output, int32_t room,
                                 double *weights) {
    const double widening = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / widening;
    const double support = filter_support(filter) * widening;
    const double center = span->origin + scale * (output + 0.5);
    reach r = {.start = (int32_t)(center - support + 0.5)};
    if (r.start < span->low) r.start = span->low;
    int32_t end = (int32_t)(center + support + 0.5);
    if (end > span->high) end = span->high;
    r.taps = end - r.start;
    if (r.taps < 0) r.taps = 0;
    if (r.taps > room) r.taps = room;
    double total = 0.0;
    for (int32_t k = 0; k < r.taps; k++) {
        weights[k] = filter_value(filter, (k + r.start - center + 0.5) * inverse);
        total += weights[k];
    }
    for (int32_t k = 0; k < r.taps && total != 0.0; k++) {
        weights[k] /= total;
        if (weights[k] > r.largest) r.largest = weights[k];
    }
    return r;
}

/* Replace each group of `shared` outputs by their mean (the last group may be smaller); returns the number of groups. */
static int32_t share(double *values, reach *reaches, int32_t room, int32_t count, int32_t shared, double *mean) {
    const int32_t outputs = (count + shared - 1) / shared;
    for (int32_t i = 0; i < outputs; i++) {
        const int32_t first = i * shared, end = first + shared < count ? first + shared : count;
        reach all = reaches[first];
        for (int32_t j = first + 1; j < end; j++) {
            const int32_t behind = all.start + all.taps, next = reaches[j].start + reaches[j].taps;
            if (reaches[j].start < all.start) all.start = reaches[j].start;
            all.taps = (behind > next ? behind : next) - all.start;
        }
        if (all.taps > room) all.taps = room;
        for (int32_t k = 0; k < all.taps; k++) mean[k] = 0.0;
        for (int32_t j = first; j < end; j++) {
            const double *value = values + (size_t)j * room;
            const int32_t from = reaches[j].start - all.start;
            for (int32_t k = 0; k < reaches[j].taps && from + k < all.taps; k++) mean[from + k] += value[k] / (end - first);
        }
        memcpy(values + (size_t)i * room, mean, sizeof *mean * (size_t)all.taps);
        reaches[i] = all;
    }
    return outputs;
}

/* Turn the weights of `end` pixels into weights of the samples from which they are upsampled. */
static void fold(double *values, reach *reaches, int32_t room, int32_t count, int32_t end, double *folded) {
    const int32_t last = (end - 1) / 2;
    for (int32_t i = 0; i < count; i++) {
        const reach pixels = reaches[i];
        reach *const samples = &reaches[i];
        double *const value = values + (size_t)i * room;
        samples->start = pixels.start > 0 ? (pixels.start - 1) / 2 : 0;
        samples->taps = (pixels.start + pixels.taps) / 2 + 1 - samples->start;
        if (samples->start + samples->taps > last + 1) samples->taps = last + 1 - samples->start;
        for (int32_t k = 0; k < samples->taps; k++) folded[k] = 0.0;
        for (int32_t k = 0; k < pixels.taps; k++) {
            const int32_t at = pixels.start + k, near = at / 2;
            int32_t next = at % 2 ? near + 1 : near - 1;
            if (next < 0) next = 0;
            if (next > last) next = last;
            folded[near - samples->start] += 0.75 * value[k];
            folded[next - samples->start] += 0.25 * value[k];
        }
        memcpy(value, folded, sizeof *folded * (size_t)samples->taps);
    }
}

static ALWAYS_INLINE bool set_weights(int filter, sf_axis *axis, const sf_span *span) {
    const double scale = span->length / span->resized;
    const double room_real = ceil(filter_support(filter) * (scale < 1.0 ? 1.0 : scale)) * 2.0 + 1.0;
    const int32_t apart = (int32_t)ceil(scale * (span->shared - 1)); /* of pixels that share an output */
    const int32_t room = (int32_t)room_real + apart;
    int32_t count = span->count;
    if (!sf_reserve(&axis->scratch, sizeof(double) * room * ((size_t)count + 1) + sizeof(reach) * count)) return false;
    double *values = axis->scratch.data, *unused = values + (size_t)room * count;
    reach *reaches = (reach *)(unused + room);

    /* The precision follows from the largest weight on the whole axis, also outside the requested window. */
    double largest = 0.0;
    int32_t taps = 1, low = span->high, high = span->low;
    for (int32_t i = 0; i < span->resized; i++) {
        const int32_t at = span->mirrored ? count - 1 - (i - span->first) : i - span->first;
        const bool wanted = at >= 0 && at < count;
        const reach r = weigh(filter, span, scale, i, room, wanted ? values + (size_t)at * room : unused);
        if (r.largest > largest) largest = r.largest;
        if (!wanted) continue;
        reaches[at] = r;
        if (r.taps > taps) taps = r.taps;
        if (r.start < low) low = r.start;
        if (r.start + r.taps > high) high = r.start + r.taps;
    }
    if (span->shared > 1) count = share(values, reaches, room, count, span->shared, unused);
    if (span->halves) fold(values, reaches, room, count, span->high, unused);
    if (span->shared > 1 || span->halves) {
        taps = 1, low = INT32_MAX, high = 0, largest = 0.0;
        for (int32_t i = 0; i < count; i++) {
            const reach *const r = &reaches[i];
            if (r->taps > taps) taps = r->taps;
            if (r->start < low) low = r->start;
            if (r->start + r->taps > high) high = r->start + r->taps;
            for (int32_t k = 0; k < r->taps; k++) largest = fmax(largest, values[(size_t)i * room + k]);
        }
    }
    int32_t precision = 0;
    while (precision < 22 && (int32_t)(0.5 + largest * (1 << (precision + 1))) < 1 << 15) precision++;

    taps = (taps + 1) & ~1;
    if (!sf_reserve(&axis->memory, (sizeof(int32_t) + sizeof(int16_t) * taps) * (size_t)count)) return false;
    axis->count = count;
    axis->taps = taps;
    axis->precision = precision;
    axis->low = low;
    axis->high = high;
    axis->starts = axis->memory.data;
    axis->weights = (int16_t *)(axis->starts + count);
    for (int32_t i = 0; i < count; i++) {
        const double *value = values + (size_t)i * room;
        int16_t *weight = axis->weights + (size_t)i * taps;
        axis->starts[i] = reaches[i].start - low;
        for (int32_t k = 0; k < taps; k++) {
            const double v = k < reaches[i].taps ? value[k] * (1 << precision) : 0.0;
            weight[k] = (int16_t)(v < 0.0 ? v - 0.5 : v + 0.5);
        }
    }
    return true;
}

/* Outputs are packed in groups of eight, up to whole blocks. */
enum { GROUP = 8 };

static int32_t group_count(const sf_axis *axis) {
    return (axis->count + SF_BLOCK - 1) / SF_BLOCK * (SF_BLOCK / GROUP);
}

/* For eight outputs and a pair of taps: four vectors that hold, for outputs (0, 4), (1, 5), (2, 6) and (3, 7), the pair
 * of weights four times each: the layout in which one multiply-add serves two RGBX pixels of two outputs. */
static bool pack_weights(sf_axis *axis) {
    const int32_t pairs = axis->taps / 2, groups = group_count(axis);
    const size_t words = (size_t)groups * pairs * 4 * 8;
    if (!sf_reserve(&axis->packed_memory, sizeof(int32_t) * (words + (size_t)groups * GROUP))) return false;
    axis->packed = axis->packed_memory.data;
    int32_t *word = axis->packed, *offset = axis->packed + words;
    for (int32_t base = 0; base < groups * GROUP; base += GROUP) {
        for (int32_t pair = 0; pair < pairs; pair++) {
            for (int32_t lane = 0; lane < GROUP; lane++) {
                const int32_t output = base + lane / 2 + (lane & 1) * 4;
                int32_t both = 0;
                if (output < axis->count) {
                    memcpy(&both, axis->weights + (size_t)output * axis->taps + 2 * pair, sizeof both);
                }
                for (int channel = 0; channel < 4; channel++) *word++ = both;
            }
        }
        for (int32_t output = base; output < base + GROUP; output++) {
            *offset++ = output < axis->count ? 4 * axis->starts[output] : 0;
        }
    }
    return true;
}

bool sf_axis_set(sf_axis *axis, const sf_span *span, bool packed) {
    axis->packed = NULL;
    bool done = false;
    if (span->filter == 0) done = set_weights(0, axis, span);
    if (span->filter == 1) done = set_weights(1, axis, span);
    if (span->filter == 2) done = set_weights(2, axis, span);
    return done && (!packed || pack_weights(axis));
}

void sf_axis_release(sf_axis *axis) {
    sf_release(&axis->memory);
    sf_release(&axis->scratch);
    sf_release(&axis->packed_memory);
}

/* ---- plain C ---- */

static ALWAYS_INLINE uint8_t clip(int32_t sum, int precision) {
    const int32_t value = sum >> precision;
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static ALWAYS_INLINE void horizontal_plain_taps(const sf_axis *axis, const uint8_t *row, uint8_t *out, int taps) {
    const int precision = axis->precision;
    const int16_t *weight = axis->weights;
    for (int32_t i = 0; i < axis->count; i++, weight += taps, out += 4) {
        const uint8_t *in = row + 4 * (ptrdiff_t)axis->starts[i];
        int32_t sum[4];
        for (int c = 0; c < 4; c++) sum[c] = 1 << (precision - 1);
        for (int k = 0; k < taps; k++) {
            for (int c = 0; c < 4; c++) sum[c] += in[4 * k + c] * weight[k];
        }
        for (int c = 0; c < 4; c++) out[c] = clip(sum[c], precision);
    }
}

static void horizontal_plain(const sf_axis *axis, const uint8_t *row, uint8_t *out) {
    if (axis->taps == 2) horizontal_plain_taps(axis, row, out, 2); /* enlarging */
    else if (axis->taps == 4) horizontal_plain_taps(axis, row, out, 4); /* down to half */
    else horizontal_plain_taps(axis, row, out, axis->taps);
}

static void split_plain(const uint8_t *row, int width, size_t plane, uint8_t *out) {
    for (int i = 0; i < width; i++) {
        for (int c = 0; c < 3; c++) out[c * plane + i] = row[4 * i + c];
    }
}

static void squeeze_plain(const uint8_t *row, int width, uint8_t *out) {
    for (int i = 0; i < width; i++) memcpy(out + 3 * (size_t)i, row + 4 * (size_t)i, 3);
}

static void vertical_plain(const uint8_t *const *rows, size_t at, const int16_t *weights, int taps, int precision,
                           size_t bytes, uint8_t *out) {
    for (size_t done = 0; done < bytes; done += SF_BLOCK) {
        int32_t sum[SF_BLOCK];
        for (int i = 0; i < SF_BLOCK; i++) sum[i] = 1 << (precision - 1);
        for (int k = 0; k < taps; k++) {
            const uint8_t *in = rows[k] + at + done;
            for (int i = 0; i < SF_BLOCK; i++) sum[i] += in[i] * weights[k];
        }
        uint8_t block[SF_BLOCK];
        for (int i = 0; i < SF_BLOCK; i++) block[i] = clip(sum[i], precision);
        memcpy(out + done, block, bytes - done < SF_BLOCK ? bytes - done : SF_BLOCK);
    }
}

static ALWAYS_INLINE void tint_inline(const uint8_t *cb, const uint8_t *cr, int count, int16_t *restrict red,
                                      int16_t *restrict green, int16_t *restrict blue) {
    const int32_t half = 1 << 15;
    for (int i = 0; i < count; i++) {
        const int32_t b = cb[i] - 128, r = cr[i] - 128;
        red[i] = (int16_t)((91881 * r + half) >> 16);
        green[i] = (int16_t)((-22554 * b - 46802 * r + half) >> 16);
        blue[i] = (int16_t)((116130 * b + half) >> 16);
    }
}

/* The sums of values and of their squares. Compilers vectorise both loops. */
static ALWAYS_INLINE void sum_inline(const uint8_t *luma, const int16_t *tints, int count, uint32_t sums[2]) {
    int32_t values = 0, squares = 0;
    for (int i = 0; i < count; i++) {
        int16_t value = (int16_t)(luma[i] + tints[i]);
        value = value < 0 ? 0 : value;
        value = value > 255 ? 255 : value;
        values += value;
        squares += value * value;
    }
    sums[0] = (uint32_t)values;
    sums[1] = (uint32_t)squares;
}

static void tint_plain(const uint8_t *cb, const uint8_t *cr, int count, int16_t *red, int16_t *green, int16_t *blue) {
    tint_inline(cb, cr, count, red, green, blue);
}

static void sum_plain(const uint8_t *luma, const int16_t *tints, int count, uint32_t sums[2]) {
    sum_inline(luma, tints, count, sums);
}

static const sf_loops PLAIN = {
    "plain C", false, horizontal_plain, split_plain, squeeze_plain, vertical_plain, tint_plain, sum_plain};

/* ---- AVX2 ---- */

#ifdef SF_HAVE_AVX2

#define AVX2 __attribute__((target("avx2")))

/* Four RGBX pixels of output a in the low half, four of output b in the high half. */
static ALWAYS_INLINE AVX2 __m256i load_pixels(const uint8_t *a, const uint8_t *b) {
    const __m128i low = _mm_loadu_si128((const __m128i *)a), high = _mm_loadu_si128((const __m128i *)b);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

static ALWAYS_INLINE AVX2 void horizontal_taps(const sf_axis *axis, const uint8_t *row, uint8_t *out, int pairs) {
    /* The first and the second two pixels of each half as r0 r1 g0 g1 b0 b1 x0 x1 in 16 bits. */
    const __m256i spread = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i spread_next = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    const int32_t groups = group_count(axis);
    const __m256i *weight = (const __m256i *)axis->packed;
    const int32_t *offset = axis->packed + (size_t)groups * pairs * 32;
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    for (int32_t group = 0; group < groups; group++, offset += GROUP, out += 4 * GROUP) {
        __m256i sum[4] = {half, half, half, half};
        for (int pair = 0; pair < pairs; pair += 2) {
            for (int i = 0; i < 4; i++) {
                const __m256i in = load_pixels(row + offset[i] + 8 * pair, row + offset[i + 4] + 8 * pair);
                const __m256i first = _mm256_shuffle_epi8(in, spread);
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(first, _mm256_load_si256(weight + i)));
                if (pair + 1 == pairs) continue;
                const __m256i next = _mm256_shuffle_epi8(in, spread_next);
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(next, _mm256_load_si256(weight + 4 + i)));
            }
            weight += pair + 1 == pairs ? 4 : 8;
        }
        for (int i = 0; i < 4; i++) sum[i] = _mm256_sra_epi32(sum[i], shift);
        const __m256i first = _mm256_packs_epi32(sum[0], sum[1]), second = _mm256_packs_epi32(sum[2], sum[3]);
        _mm256_storeu_si256((__m256i *)out, _mm256_packus_epi16(first, second));
    }
}

static AVX2 void horizontal_avx2(const sf_axis *axis, const uint8_t *row, uint8_t *out) {
    const int pairs = axis->taps / 2;
    if (pairs == 1) horizontal_taps(axis, row, out, 1); /* enlarging */
    else if (pairs == 2) horizontal_taps(axis, row, out, 2); /* down to half */
    else horizontal_taps(axis, row, out, pairs);
}

static AVX2 void split_avx2(const uint8_t *row, int width, size_t plane, uint8_t *out) {
    const __m256i gather = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, /* low half */
                                            0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int i = 0; i < width; i += 32, row += 128, out += 32) {
        __m256i v[4]; /* each half: four reds, greens, blues, fillers */
        for (int k = 0; k < 4; k++) {
            v[k] = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(row + 32 * k)), gather);
        }
        const __m256i rg01 = _mm256_unpacklo_epi32(v[0], v[1]), rg23 = _mm256_unpacklo_epi32(v[2], v[3]);
        const __m256i bx01 = _mm256_unpackhi_epi32(v[0], v[1]), bx23 = _mm256_unpackhi_epi32(v[2], v[3]);
        const __m256i planes[3] = {_mm256_unpacklo_epi64(rg01, rg23), _mm256_unpackhi_epi64(rg01, rg23),
                                   _mm256_unpacklo_epi64(bx01, bx23)};
        for (int c = 0; c < 3; c++) {
            _mm256_storeu_si256((__m256i *)(out + c * plane), _mm256_permutevar8x32_epi32(planes[c], order));
        }
    }
}

static AVX2 void squeeze_avx2(const uint8_t *row, int width, uint8_t *out) {
    const __m256i drop = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, /* low half */
                                          0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i join = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    for (int i = 0; i < width; i += 8, row += 32, out += 24) {
        const __m256i v = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)row), drop);
        const __m256i w = _mm256_permutevar8x32_epi32(v, join);
        _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(w));
        _mm_storel_epi64((__m128i *)(out + 16), _mm256_extracti128_si256(w, 1));
    }
}

/* 32 bytes of the weighted sum of rows. */
static ALWAYS_INLINE AVX2 __m256i weighted_sum(const uint8_t *const *rows, size_t at, const int16_t *weights, int pairs,
                                               __m256i half, __m128i shift) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum[4] = {half, half, half, half};
    for (int pair = 0; pair < pairs; pair++) {
        int32_t both;
        memcpy(&both, weights + 2 * pair, sizeof both);
        const __m256i weight = _mm256_set1_epi32(both);
        const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[2 * pair] + at));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[2 * pair + 1] + at));
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        const __m256i words[4] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                                  _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
        for (int i = 0; i < 4; i++) sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(words[i], weight));
    }
    for (int i = 0; i < 4; i++) sum[i] = _mm256_sra_epi32(sum[i], shift);
    /* The unpacks and these packs both work within 128-bit halves, so the order comes out as it went in. */
    return _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
}

static ALWAYS_INLINE AVX2 void vertical_taps(const uint8_t *const *rows, size_t at, const int16_t *weights, int pairs,
                                             int precision, size_t bytes, uint8_t *out) {
    const __m256i half = _mm256_set1_epi32(1 << (precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(precision);
    size_t done = 0;
    for (; done + 32 <= bytes; done += 32) {
        _mm256_storeu_si256((__m256i *)(out + done), weighted_sum(rows, at + done, weights, pairs, half, shift));
    }
    if (done < bytes) {
        const __m256i last = weighted_sum(rows, at + done, weights, pairs, half, shift);
        memcpy(out + done, &last, bytes - done);
    }
}

static AVX2 void vertical_avx2(const uint8_t *const *rows, size_t at, const int16_t *weights, int taps, int precision,
                               size_t bytes, uint8_t *out) {
    if (taps == 2) vertical_taps(rows, at, weights, 1, precision, bytes, out);
    else if (taps == 4) vertical_taps(rows, at, weights, 2, precision, bytes, out);
    else vertical_taps(rows, at, weights, taps / 2, precision, bytes, out);
}

static AVX2 void tint_avx2(const uint8_t *cb, const uint8_t *cr, int count, int16_t *red, int16_t *green,
                           int16_t *blue) {
    tint_inline(cb, cr, count, red, green, blue);
}

static AVX2 void sum_avx2(const uint8_t *luma, const int16_t *tints, int count, uint32_t sums[2]) {
    sum_inline(luma, tints, count, sums);
}

static const sf_loops AVX2_LOOPS = {
    "AVX2", true, horizontal_avx2, split_avx2, squeeze_avx2, vertical_avx2, tint_avx2, sum_avx2};

/* Whether processor and operating system support AVX2. Not __builtin_cpu_supports, which reads a table that the compiler's
 * runtime library must fill: Zig's does not. */
bool sf_has_avx2(void) {
    unsigned a, b, c, d, enabled, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    __asm__("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
    const unsigned vectors = 2 | 4; /* the operating system saves the registers of SSE and AVX */
    return (enabled & vectors) == vectors && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

#endif

/* ---- NEON ---- */

#ifdef SF_HAVE_NEON

/* The weighted sum of RGBX pixels, with 32 bits per channel. */
static ALWAYS_INLINE int32x4_t pixel_sum(const uint8_t *in, const int16_t *weights, int taps, int32x4_t half) {
    int32x4_t sum = half;
    for (int k = 0; k < taps; k += 2) {
        const int16x8_t two = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(in + 4 * k)));
        sum = vmlal_n_s16(sum, vget_low_s16(two), weights[k]);
        sum = vmlal_n_s16(sum, vget_high_s16(two), weights[k + 1]);
    }
    return sum;
}

/* Eight sums to bytes. */
static ALWAYS_INLINE uint8x8_t narrow(int32x4_t a, int32x4_t b, int32x4_t shift) {
    return vqmovun_s16(vcombine_s16(vqmovn_s32(vshlq_s32(a, shift)), vqmovn_s32(vshlq_s32(b, shift))));
}

static ALWAYS_INLINE void horizontal_neon_taps(const sf_axis *axis, const uint8_t *row, uint8_t *out, int taps) {
    const int32x4_t half = vdupq_n_s32(1 << (axis->precision - 1)), shift = vdupq_n_s32(-axis->precision);
    const int16_t *weight = axis->weights;
    const int32_t *start = axis->starts, last = axis->count - 1;
    for (int32_t i = 0; i <= last; i += 4, out += 16) { /* four independent sums at once */
        int32x4_t sum[4];
        for (int k = 0; k < 4; k++) {
            const int32_t at = i + k < last ? i + k : last;
            sum[k] = pixel_sum(row + 4 * (ptrdiff_t)start[at], weight + (size_t)at * (size_t)taps, taps, half);
        }
        vst1q_u8(out, vcombine_u8(narrow(sum[0], sum[1], shift), narrow(sum[2], sum[3], shift)));
    }
}

static void horizontal_neon(const sf_axis *axis, const uint8_t *row, uint8_t *out) {
    if (axis->taps == 2) horizontal_neon_taps(axis, row, out, 2); /* enlarging */
    else if (axis->taps == 4) horizontal_neon_taps(axis, row, out, 4); /* down to half */
    else horizontal_neon_taps(axis, row, out, axis->taps);
}

static void split_neon(const uint8_t *row, int width, size_t plane, uint8_t *out) {
    for (int i = 0; i < width; i += 16) {
        const uint8x16x4_t pixels = vld4q_u8(row + 4 * (size_t)i);
        for (int c = 0; c < 3; c++) vst1q_u8(out + c * plane + i, pixels.val[c]);
    }
}

static void squeeze_neon(const uint8_t *row, int width, uint8_t *out) {
    for (int i = 0; i < width; i += 16) {
        const uint8x16x4_t in = vld4q_u8(row + 4 * (size_t)i);
        const uint8x16x3_t pixels = {{in.val[0], in.val[1], in.val[2]}};
        vst3q_u8(out + 3 * (size_t)i, pixels);
    }
}

static ALWAYS_INLINE void vertical_neon_taps(const uint8_t *const *rows, size_t at, const int16_t *weights, int taps,
                                             int precision, size_t bytes, uint8_t *out) {
    const int32x4_t half = vdupq_n_s32(1 << (precision - 1)), shift = vdupq_n_s32(-precision);
    for (size_t done = 0; done < bytes; done += 16) {
        int32x4_t sum[4] = {half, half, half, half};
        for (int k = 0; k < taps; k++) {
            const uint8x16_t in = vld1q_u8(rows[k] + at + done);
            const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(in)));
            const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(in)));
            sum[0] = vmlal_n_s16(sum[0], vget_low_s16(low), weights[k]);
            sum[1] = vmlal_n_s16(sum[1], vget_high_s16(low), weights[k]);
            sum[2] = vmlal_n_s16(sum[2], vget_low_s16(high), weights[k]);
            sum[3] = vmlal_n_s16(sum[3], vget_high_s16(high), weights[k]);
        }
        const uint8x16_t made = vcombine_u8(narrow(sum[0], sum[1], shift), narrow(sum[2], sum[3], shift));
        if (bytes - done >= 16) vst1q_u8(out + done, made);
        else memcpy(out + done, &made, bytes - done);
    }
}

static void vertical_neon(const uint8_t *const *rows, size_t at, const int16_t *weights, int taps, int precision,
                          size_t bytes, uint8_t *out) {
    if (taps == 2) vertical_neon_taps(rows, at, weights, 2, precision, bytes, out);
    else if (taps == 4) vertical_neon_taps(rows, at, weights, 4, precision, bytes, out);
    else vertical_neon_taps(rows, at, weights, taps, precision, bytes, out);
}

static const sf_loops NEON_LOOPS = {
    "NEON", false, horizontal_neon, split_neon, squeeze_neon, vertical_neon, tint_plain, sum_plain};

#endif

#ifndef SF_HAVE_AVX2
bool sf_has_avx2(void) { return false; }
#endif

const sf_loops *sf_loops_choose(bool simd) {
#if defined(SF_HAVE_AVX2)
    if (simd && sf_has_avx2()) return &AVX2_LOOPS;
#elif defined(SF_HAVE_NEON)
    if (simd) return &NEON_LOOPS;
#endif
    (void)simd;
    return &PLAIN;
}

#include "color.h"

#include "blocks.h"

#if defined(SF_HAVE_AVX2) || defined(SF_GENERIC)

/* Store 32 pixels, given 16-bit chroma from -128 on, separately for even and odd pixels. */
static ALWAYS_INLINE AVX2 void store_pixels(__m256i luma, __m256i blue[2], __m256i red[2], uint8_t *out) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i y[2] = {_mm256_and_si256(luma, _mm256_set1_epi16(255)), _mm256_srli_epi16(luma, 8)};
    __m256i r[2], g[2], b[2];
    for (int i = 0; i < 2; i++) {
        const __m256i twice_blue = _mm256_add_epi16(blue[i], blue[i]);
        /* 1.402 = 1 + 13173/2^15, and 1.772 = 2 - 7471/2^15 */
        const __m256i more_red = _mm256_mulhrs_epi16(red[i], _mm256_set1_epi16(13173));
        const __m256i less_blue = _mm256_mulhrs_epi16(blue[i], _mm256_set1_epi16(-7471));
        r[i] = _mm256_add_epi16(_mm256_add_epi16(y[i], red[i]), more_red);
        b[i] = _mm256_add_epi16(_mm256_add_epi16(y[i], twice_blue), less_blue);
        /* 0.34414 = 22554/2^16, and 0.71414 = 1 - 18734/2^16 */
        const wide both = products(interleave(blue[i], red[i]), -22554, 18734);
        g[i] = _mm256_sub_epi16(_mm256_add_epi16(y[i], descaled(both, 16)), red[i]);
    }
    /* In each half, eight even pixels and then the odd pixels between them. */
    const __m256i reds = _mm256_packus_epi16(r[0], r[1]), greens = _mm256_packus_epi16(g[0], g[1]);
    const __m256i blues = _mm256_packus_epi16(b[0], b[1]);
    const __m256i rg_even = _mm256_unpacklo_epi8(reds, greens), rg_odd = _mm256_unpackhi_epi8(reds, greens);
    const __m256i bx_even = _mm256_unpacklo_epi8(blues, zero), bx_odd = _mm256_unpackhi_epi8(blues, zero);
    const __m256i even0 = _mm256_unpacklo_epi16(rg_even, bx_even), even1 = _mm256_unpackhi_epi16(rg_even, bx_even);
    const __m256i odd0 = _mm256_unpacklo_epi16(rg_odd, bx_odd), odd1 = _mm256_unpackhi_epi16(rg_odd, bx_odd);
    const __m256i q0 = _mm256_unpacklo_epi32(even0, odd0), q1 = _mm256_unpackhi_epi32(even0, odd0);
    const __m256i q2 = _mm256_unpacklo_epi32(even1, odd1), q3 = _mm256_unpackhi_epi32(even1, odd1);
    _mm256_storeu_si256((void *)out, _mm256_permute2x128_si256(q0, q1, 0x20));
    _mm256_storeu_si256((void *)(out + 32), _mm256_permute2x128_si256(q2, q3, 0x20));
    _mm256_storeu_si256((void *)(out + 64), _mm256_permute2x128_si256(q0, q1, 0x31));
    _mm256_storeu_si256((void *)(out + 96), _mm256_permute2x128_si256(q2, q3, 0x31));
}

static ALWAYS_INLINE AVX2 __m256i load(const void *at) { return _mm256_loadu_si256(at); }

/* Widen a line of chroma to 16 bits: three times `near` plus `far`, or `near` alone without `far`. */
static AVX2 void add_lines(const uint8_t *near, const uint8_t *far, size_t count, int16_t *out) {
    for (size_t i = 0; i < count; i += 16) {
        const __m256i a = sf_load_bytes(near + i);
        if (!far) {
            _mm256_storeu_si256((void *)(out + i), a);
            continue;
        }
        const __m256i b = sf_load_bytes(far + i);
        const __m256i sum = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_slli_epi16(a, 1));
        _mm256_storeu_si256((void *)(out + i), sum);
    }
}

/* Interpolate 16 values of a weighted line to 32 pixels: even and odd pixels, which are rounded alternately. */
static ALWAYS_INLINE AVX2 void widen_chroma(const int16_t *sums, int bits, __m256i out[2]) {
    const __m256i here = load(sums), left = load(sums - 1), right = load(sums + 1), middle = _mm256_set1_epi16(128);
    const __m256i thrice = _mm256_add_epi16(here, _mm256_slli_epi16(here, 1));
    const __m256i even = _mm256_add_epi16(_mm256_add_epi16(thrice, left), _mm256_set1_epi16(bits == 4 ? 8 : 1));
    const __m256i odd = _mm256_add_epi16(_mm256_add_epi16(thrice, right), _mm256_set1_epi16(bits == 4 ? 7 : 2));
    out[0] = _mm256_sub_epi16(_mm256_srli_epi16(even, bits), middle);
    out[1] = _mm256_sub_epi16(_mm256_srli_epi16(odd, bits), middle);
}

/* Lines of 4:4:4 chroma. */
static AVX2 void write_444(const uint8_t *luma, const uint8_t *const chroma[2], size_t count, uint8_t *restrict row) {
    const __m256i middle = _mm256_set1_epi16(128), low = _mm256_set1_epi16(255);
    for (size_t i = 0; i < count; i += SF_LINE, row += 4 * SF_LINE) {
        __m256i parts[2][2];
        for (int c = 0; c < 2; c++) {
            const __m256i both = load(chroma[c] + i);
            parts[c][0] = _mm256_sub_epi16(_mm256_and_si256(both, low), middle);
            parts[c][1] = _mm256_sub_epi16(_mm256_srli_epi16(both, 8), middle);
        }
        store_pixels(load(luma + i), parts[0], parts[1], row);
    }
}

/* Lines with half as many chroma values, whose weights sum to 2^bits after interpolation. */
static ALWAYS_INLINE AVX2 void write_halved(const uint8_t *luma, const int16_t *blue, const int16_t *red, int bits,
                                            size_t count, uint8_t *restrict row) {
    for (size_t i = 0; i < count; i += SF_LINE, row += 4 * SF_LINE) {
        __m256i parts[2][2];
        widen_chroma(blue + i / 2, bits, parts[0]);
        widen_chroma(red + i / 2, bits, parts[1]);
        store_pixels(load(luma + i), parts[0], parts[1], row);
    }
}

static AVX2 void write_422(const uint8_t *luma, int16_t *const sums[2], size_t count, uint8_t *row) {
    write_halved(luma, sums[0], sums[1], 2, count, row);
}

static AVX2 void write_420(const uint8_t *luma, int16_t *const sums[2], size_t count, uint8_t *row) {
    write_halved(luma, sums[0], sums[1], 4, count, row);
}

const sf_color_loops SF_LOOPS(sf_color_loops) = {add_lines, write_444, write_422, write_420};

#endif

#ifndef SF_GENERIC

static void write_grey(const uint8_t *restrict luma, size_t count, uint8_t *restrict row) {
    for (size_t i = 0; i < 4 * count; i++) row[i] = luma[i / 4];
}

/* ---- lines ---- */

static const uint8_t *line_of(const sf_scan *scan, int plane, int32_t line) {
    const sf_samples *const samples = &scan->samples[plane];
    const int32_t kept = scan->slots * samples->lines; /* a power of two */
    return samples->rows + (size_t)(line & (kept - 1)) * samples->stride;
}

/* Weight a line of a chroma plane with its neighbour `beside`, if there is one. Repeat its first and last samples. */
static void weight(const sf_color *c, int plane, const uint8_t *line, const uint8_t *beside, size_t count) {
    int16_t *const sums = c->sums[plane - 1];
    c->loops->add_lines(line, beside, count, sums);
    const sf_samples *const samples = &c->scan->samples[plane];
    const size_t left = (size_t)(samples->width - c->scan->window.left * samples->columns);
    const size_t end = left < count ? left : count;
    sums[-1] = sums[0];
    sums[end] = sums[end - 1];
}

bool sf_color_line(sf_color *c, int32_t line, uint8_t *row) {
    sf_scan *const scan = c->scan;
    const bool grey = c->across == 0;
    const sf_samples *const luma = &scan->samples[0], *const chroma = &scan->samples[grey ? 0 : 1];
    const int32_t own = c->down == 2 ? line / 2 : line, last = chroma->height - 1;
    /* libjpeg-turbo makes both lines of a pair at once, after the line of chroma below: wait for that line here too. */
    const int32_t below = c->down == 2 && own < last ? own + 1 : own;
    const int32_t together = c->together, wanted = (below / chroma->lines / together + 1) * together;
    while (scan->next_row < wanted && scan->next_row < scan->rows) {
        if (!sf_scan_next(scan)) return false;
    }
    const size_t width = (size_t)(luma->columns * (scan->window.right - scan->window.left));
    if (grey) {
        write_grey(line_of(scan, 0, line), width, row);
        return true;
    }
    const int32_t beside = line % 2 ? below : own > 0 ? own - 1 : 0;
    const uint8_t *lines[2];
    for (int i = 0; i < 2; i++) {
        lines[i] = line_of(scan, 1 + i, own);
        if (c->across == 2) weight(c, 1 + i, lines[i], c->down == 2 ? line_of(scan, 1 + i, beside) : NULL, width / 2);
    }
    const uint8_t *const luma_line = line_of(scan, 0, line);
    if (c->across == 1) c->loops->write_444(luma_line, lines, width, row);
    else (c->down == 1 ? c->loops->write_422 : c->loops->write_420)(luma_line, c->sums, width, row);
    return true;
}

/* ---- public ---- */

bool sf_color_can(const sf_jpeg *jpeg, int32_t reduction) {
    const sf_shape *const shape = &jpeg->shape;
    if (shape->count == 1) return true;
    if (jpeg->is_rgb) return false;
    const int across = shape->max_h, down = shape->max_v;
    if (shape->h[0] != across || shape->v[0] != down || across > 2 || down > across) return false;
    for (int i = 1; i < PLANES; i++) {
        if (shape->h[i] != 1 || shape->v[i] != 1) return false;
    }
    if (across == 1 || sf_samples_of_block(shape, 1, reduction) > DCTSIZE / reduction) return true;
    /* libjpeg-turbo does not interpolate so few columns, or single samples of blocks. */
    return reduction < DCTSIZE && sf_divide_up(shape->width, 2 * reduction) > 2;
}

bool sf_color_start(sf_color *c, sf_scan *scan, sf_entropy *entropy, const sf_jpeg *jpeg, int32_t reduction,
                    sf_window window) {
    const sf_shape *const shape = &jpeg->shape;
    const bool grey = shape->count == 1, halves = !grey && sf_samples_of_block(shape, 1, reduction) == DCTSIZE / reduction;
    c->scan = scan;
    c->across = grey ? 0 : halves ? shape->max_h : 1;
    c->down = halves ? shape->max_v : 1;
    c->together = grey ? shape->max_v : 1;
    const size_t width = (size_t)jpeg->mcu_width * (size_t)(window.right - window.left) / (size_t)reduction + 2 * SF_LINE;
    if (!sf_reserve(&c->memory, 2 * sizeof(int16_t) * width)) return false;
    for (int i = 0; i < 2; i++) c->sums[i] = (int16_t *)c->memory.data + (size_t)i * width + SF_LINE / 2;
    return sf_scan_start(scan, entropy, jpeg, reduction, window, grey ? 4 : 2); /* grey has up to four rows together */
}

void sf_color_init(sf_color *c, bool simd) {
    c->loops = &sf_color_loops_generic;
#ifdef SF_HAVE_AVX2
    if (simd && sf_has_avx2()) c->loops = &sf_color_loops_avx2;
#endif
    (void)simd;
}

#endif

#include "pixels.h"

#include <string.h>

#include "blocks.h"

#ifdef SF_HAVE_AVX2

/* ---- the inverse transform: jidctint.c's "islow", in the arithmetic of libjpeg-turbo's vector code (16 bits that wrap
 * around, sums of 32), two blocks at once, one in each half of the vectors ---- */

enum { LINE = 32 };

static ALWAYS_INLINE AVX2 wide scaled(__m256i a) {
    const wide high = interleave(_mm256_setzero_si256(), a);
    return (wide){_mm256_srai_epi32(high.low, 16 - CONST_BITS), _mm256_srai_epi32(high.high, 16 - CONST_BITS)};
}

/* Outputs from the sums of the even and of the odd inputs. */
static ALWAYS_INLINE AVX2 void combine(const wide even[4], const wide odd[4], int bits, __m256i v[8]) {
    for (int i = 0; i < 4; i++) {
        v[i] = descaled(plus(even[i], odd[i]), bits);
        v[7 - i] = descaled(minus(even[i], odd[i]), bits);
    }
}

static ALWAYS_INLINE AVX2 void transform(__m256i v[8], int bits) {
    const wide in26 = interleave(v[2], v[6]);
    const wide even0 = scaled(_mm256_add_epi16(v[0], v[4])), even1 = scaled(_mm256_sub_epi16(v[0], v[4]));
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

/* A block, what its coefficients are multiplied with, and where its pixels go. */
typedef struct {
    int16_t *block;
    const int16_t *factors;
    uint8_t *out;
    size_t stride;
} job;

static ALWAYS_INLINE AVX2 void store_pair(__m256i rows, const job *a, const job *b, int first) {
    const __m128i low = _mm256_castsi256_si128(rows), high = _mm256_extracti128_si256(rows, 1);
    _mm_storel_epi64((__m128i *)(a->out + (size_t)first * a->stride), low);
    _mm_storeh_pd((double *)(void *)(a->out + (size_t)(first + 1) * a->stride), _mm_castsi128_pd(low));
    _mm_storel_epi64((__m128i *)(b->out + (size_t)first * b->stride), high);
    _mm_storeh_pd((double *)(void *)(b->out + (size_t)(first + 1) * b->stride), _mm_castsi128_pd(high));
}

static AVX2 void transform_pair(const job *a, const job *b) {
    __m256i v[8], rest = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        v[i] = two(a->block + 8 * i, b->block + 8 * i);
        if (i > 0) rest = _mm256_or_si256(rest, v[i]);
        v[i] = _mm256_mullo_epi16(v[i], two(a->factors + 8 * i, b->factors + 8 * i));
    }
    /* Where only the first row has coefficients the first pass is a shift there too, which differs for values that no
     * encoder makes. */
    const __m256i shifted = _mm256_slli_epi16(v[0], PASS1_BITS);
    transform(v, CONST_BITS - PASS1_BITS);
    const __m256i whole = _mm256_or_si256(rest, _mm256_shuffle_epi32(rest, 0x4E));
    const __m256i is_zero = _mm256_cmpeq_epi64(whole, _mm256_setzero_si256());
    for (int i = 0; i < 8; i++) v[i] = _mm256_blendv_epi8(v[i], shifted, is_zero);
    transpose(v);
    transform(v, CONST_BITS + PASS1_BITS + 3);
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

/* ---- MCUs ---- */

static AVX2 void transform_mcu(sf_pixels *p, int32_t column, int32_t slot) {
    const int count = p->across * p->down + 2;
    job jobs[6];
    for (int i = 0; i < count; i++) {
        const sf_target *const t = &p->targets[i];
        jobs[i] = (job){p->blocks[i], t->factors, t->out + (size_t)column * t->column + (size_t)slot * t->slot, t->stride};
    }
    for (int i = 0; i < count; i += 2) transform_pair(jobs + i, jobs + (i + 1 < count ? i + 1 : i));
    memset(p->blocks, 0, sizeof(JBLOCK) * (size_t)count);
}

/* Decode the next row of MCUs into its slot. */
static bool decode_row(sf_pixels *p) {
    const sf_window window = p->window;
    const int32_t row = p->next_row++;
    JBLOCKROW into[6];
    for (int i = 0; i < 6; i++) into[i] = &p->blocks[i];
    for (int32_t column = 0; column < p->columns; column++) {
        const bool wanted = row >= window.top && row < window.bottom && column >= window.left && column < window.right;
        if (!sf_entropy_decode(p->entropy, wanted ? into : NULL)) return false;
        if (wanted) transform_mcu(p, column - window.left, row % 2);
    }
    return true;
}

/* ---- lines ---- */

/* 32 pixels whose chroma is given apart for the even and the odd ones, in 16 bits from -128 on. */
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
    /* Of each half, eight even pixels and then the odd ones between them. */
    const __m256i reds = _mm256_packus_epi16(r[0], r[1]), greens = _mm256_packus_epi16(g[0], g[1]);
    const __m256i blues = _mm256_packus_epi16(b[0], b[1]);
    const __m256i rg_even = _mm256_unpacklo_epi8(reds, greens), rg_odd = _mm256_unpackhi_epi8(reds, greens);
    const __m256i bx_even = _mm256_unpacklo_epi8(blues, zero), bx_odd = _mm256_unpackhi_epi8(blues, zero);
    const __m256i even0 = _mm256_unpacklo_epi16(rg_even, bx_even), even1 = _mm256_unpackhi_epi16(rg_even, bx_even);
    const __m256i odd0 = _mm256_unpacklo_epi16(rg_odd, bx_odd), odd1 = _mm256_unpackhi_epi16(rg_odd, bx_odd);
    const __m256i q0 = _mm256_unpacklo_epi32(even0, odd0), q1 = _mm256_unpackhi_epi32(even0, odd0);
    const __m256i q2 = _mm256_unpacklo_epi32(even1, odd1), q3 = _mm256_unpackhi_epi32(even1, odd1);
    _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(q0, q1, 0x20));
    _mm256_storeu_si256((__m256i *)(out + 32), _mm256_permute2x128_si256(q2, q3, 0x20));
    _mm256_storeu_si256((__m256i *)(out + 64), _mm256_permute2x128_si256(q0, q1, 0x31));
    _mm256_storeu_si256((__m256i *)(out + 96), _mm256_permute2x128_si256(q2, q3, 0x31));
}

static ALWAYS_INLINE AVX2 __m256i load(const void *at) { return _mm256_loadu_si256(at); }

/* The line of a chroma plane in 16 bits, near the line `near` three times as heavy as near `far`; alone without `far`. */
static AVX2 void add_lines(const uint8_t *near, const uint8_t *far, size_t count, int16_t *out) {
    for (size_t i = 0; i < count; i += 16) {
        const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + i)));
        if (!far) {
            _mm256_storeu_si256((__m256i *)(out + i), a);
            continue;
        }
        const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + i)));
        const __m256i sum = _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_slli_epi16(a, 1));
        _mm256_storeu_si256((__m256i *)(out + i), sum);
    }
}

/* 16 values of a weighted line to those of 32 pixels: even and odd ones, which are rounded in turns. */
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
    for (size_t i = 0; i < count; i += LINE, row += 4 * LINE) {
        __m256i parts[2][2];
        for (int c = 0; c < 2; c++) {
            const __m256i both = load(chroma[c] + i);
            parts[c][0] = _mm256_sub_epi16(_mm256_and_si256(both, low), middle);
            parts[c][1] = _mm256_sub_epi16(_mm256_srli_epi16(both, 8), middle);
        }
        store_pixels(load(luma + i), parts[0], parts[1], row);
    }
}

/* Lines of half as many values of chroma, whose weights add up to 2^bits after they are widened. */
static ALWAYS_INLINE AVX2 void write_halved(const uint8_t *luma, const int16_t *blue, const int16_t *red, int bits,
                                            size_t count, uint8_t *restrict row) {
    for (size_t i = 0; i < count; i += LINE, row += 4 * LINE) {
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

static const uint8_t *line_of(const sf_pixels *p, int plane, int32_t line) {
    const int32_t kept = 2 * DCTSIZE * (plane ? 1 : p->down); /* a power of two */
    return p->planes[plane] + (size_t)(line & (kept - 1)) * p->strides[plane];
}

bool sf_pixels_line(sf_pixels *p, int32_t line, uint8_t *row) {
    const int32_t chroma = p->down == 2 ? line / 2 : line, last = p->chroma_height - 1;
    /* The lines of a pair are made at once there: both wait for the line of chroma below. */
    const int32_t below = p->down == 2 && chroma < last ? chroma + 1 : chroma;
    while (p->next_row <= below / DCTSIZE) {
        if (!decode_row(p)) return false;
    }
    const int32_t beside = line % 2 ? below : chroma > 0 ? chroma - 1 : 0;
    const size_t width = (size_t)(DCTSIZE * p->across * (p->window.right - p->window.left));
    const int32_t columns_left = p->chroma_width - p->window.left * DCTSIZE; /* of the image */
    const uint8_t *lines[2];
    for (int c = 0; c < 2; c++) {
        lines[c] = line_of(p, 1 + c, chroma);
        if (p->across == 1) continue;
        int16_t *const sums = p->sums[c];
        const size_t count = width / 2;
        add_lines(lines[c], p->down == 2 ? line_of(p, 1 + c, beside) : NULL, count, sums);
        sums[-1] = sums[0];
        const size_t end = (size_t)columns_left < count ? (size_t)columns_left : count;
        sums[end] = sums[end - 1];
    }
    const uint8_t *const luma = line_of(p, 0, line);
    if (p->across == 1) write_444(luma, lines, width, row);
    else if (p->down == 1) write_422(luma, p->sums, width, row);
    else write_420(luma, p->sums, width, row);
    return true;
}

/* ---- public ---- */

static bool can_decode(const struct jpeg_decompress_struct *info, sf_coding coding) {
    if (info->jpeg_color_space != JCS_YCbCr || info->scale_denom != 1 || coding.comps_in_scan != 3) return false;
    for (int i = 0; i < 3; i++) {
        const jpeg_component_info *const component = coding.cur_comp_info[i];
        if (component->component_index != i) return false;
        if (i > 0 && (component->h_samp_factor != 1 || component->v_samp_factor != 1)) return false;
    }
    const int across = coding.max_h_samp_factor, down = coding.max_v_samp_factor;
    if (across != coding.cur_comp_info[0]->h_samp_factor || down != coding.cur_comp_info[0]->v_samp_factor) return false;
    if (across > 2 || down > across) return false;
    return across == 1 || info->image_width > 4; /* so few columns are not interpolated */
}

/* Set where the blocks of an MCU go. Divisions are done here, once for an image: by numbers that vary they are slow. */
static void set_targets(sf_pixels *p) {
    const int luma = p->across * p->down;
    for (int i = 0; i < luma + 2; i++) {
        const int plane = i < luma ? 0 : i - luma + 1;
        const size_t across = plane ? 1 : (size_t)p->across, down = plane ? 1 : (size_t)p->down;
        const size_t x = plane ? 0 : (size_t)i % across, y = plane ? 0 : (size_t)i / across, stride = p->strides[plane];
        p->targets[i] = (sf_target){
            .factors = p->factors[plane], .out = p->planes[plane] + DCTSIZE * (y * stride + x), .stride = stride,
            .column = DCTSIZE * across, .slot = DCTSIZE * down * stride,
        };
    }
}

bool sf_pixels_start(sf_pixels *p, sf_entropy *entropy, const struct jpeg_decompress_struct *info, sf_coding coding,
                     sf_window window) {
    if (!can_decode(info, coding)) return false;
    p->entropy = entropy;
    p->window = window;
    p->across = coding.max_h_samp_factor;
    p->down = coding.max_v_samp_factor;
    p->chroma_width = ((int32_t)info->image_width + p->across - 1) / p->across;
    p->chroma_height = ((int32_t)info->image_height + p->down - 1) / p->down;
    p->columns = (p->chroma_width + DCTSIZE - 1) / DCTSIZE;
    p->next_row = 0;
    const size_t width = DCTSIZE * (size_t)(window.right - window.left), slack = 2 * LINE;
    size_t offset = 0, offsets[3];
    for (int i = 0; i < 3; i++) {
        p->strides[i] = width * (i ? 1 : (size_t)p->across);
        offsets[i] = offset;
        offset += 2 * DCTSIZE * (i ? 1 : (size_t)p->down) * p->strides[i] + slack;
    }
    const size_t sums = width + slack;
    if (!sf_reserve(&p->memory, offset + 2 * sizeof(int16_t) * sums)) return false;
    for (int i = 0; i < 3; i++) {
        p->planes[i] = (uint8_t *)p->memory.data + offsets[i];
        const uint16_t *const factors = info->quant_tbl_ptrs[coding.cur_comp_info[i]->quant_tbl_no];
        for (int k = 0; k < DCTSIZE2; k++) p->factors[i][k] = (int16_t)factors[k];
    }
    set_targets(p);
    for (int c = 0; c < 2; c++) p->sums[c] = (int16_t *)((uint8_t *)p->memory.data + offset) + (size_t)c * sums + LINE / 2;
    memset(p->blocks, 0, sizeof p->blocks);
    return true;
}

#else

bool sf_pixels_start(sf_pixels *p, sf_entropy *entropy, const struct jpeg_decompress_struct *info, sf_coding coding,
                     sf_window window) {
    (void)p, (void)entropy, (void)info, (void)coding, (void)window;
    return false;
}

bool sf_pixels_line(sf_pixels *p, int32_t line, uint8_t *row) {
    (void)p, (void)line, (void)row;
    return false;
}

#endif

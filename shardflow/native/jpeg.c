#include "jpeg.h"

#include <string.h>

#include "seek.h"
#include "standard_tables.h"

/* The segments before the scan, and the properties of the image that have been read so far. */
typedef struct {
    sf_jpeg *jpeg;
    const uint8_t *at, *end; /* of the current segment, without its marker and length */
    const uint8_t *steps[NUM_QUANT_TBLS];
    bool wide_steps[NUM_QUANT_TBLS];
    uint8_t ids[PLANES], tables[PLANES]; /* of components, and of their quantisation tables */
    bool has_jfif;
    int transform; /* of colours, from the Adobe segment; -1: not given */
} header;

static size_t left_in(const header *h) { return (size_t)(h->end - h->at); }

static unsigned two_bytes(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }

static bool read_quantisation(header *h) {
    while (h->at < h->end) {
        const unsigned number = *h->at & 15, precision = *h->at >> 4;
        const size_t bytes = DCTSIZE2 << precision;
        if (number >= NUM_QUANT_TBLS || precision > 1 || left_in(h) < 1 + bytes) return false;
        h->steps[number] = h->at + 1;
        h->wide_steps[number] = precision;
        h->at += 1 + bytes;
    }
    return true;
}

/* Whether a decoder can be built from a table: the codes fit the tree, and no code is all ones. */
static bool is_tree(const sf_code_lengths *table, bool is_dc) {
    uint32_t code = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        code += table->counts[length - 1];
        if (code >= 1u << length) return false;
    }
    for (int i = 0; is_dc && i < table->count; i++) {
        if (table->symbols[i] > 15) return false;
    }
    return true;
}

static bool read_codes(header *h) {
    while (h->at < h->end) {
        const unsigned number = *h->at & 15, class = *h->at >> 4;
        if (number >= NUM_HUFF_TBLS || class > 1 || left_in(h) < 17) return false;
        sf_code_lengths *const table = &h->jpeg->codes[class][number];
        *table = (sf_code_lengths){.counts = h->at + 1, .symbols = h->at + 17};
        for (int i = 0; i < 16; i++) table->count += table->counts[i];
        if (table->count > 256 || left_in(h) < 17 + (size_t)table->count) return false;
        h->at += 17 + table->count;
    }
    return true;
}

static bool read_frame(header *h) {
    sf_shape *const shape = &h->jpeg->shape;
    if (shape->count || left_in(h) < 6 || h->at[0] != 8) return false;
    shape->height = (int32_t)two_bytes(h->at + 1);
    shape->width = (int32_t)two_bytes(h->at + 3);
    shape->count = h->at[5];
    if (shape->count != 1 && shape->count != PLANES) return false;
    if (shape->width < 1 || shape->height < 1 || shape->width > MAX_DIMENSION || shape->height > MAX_DIMENSION) return false;
    if (left_in(h) != 6 + 3 * (size_t)shape->count) return false;
    for (int i = 0; i < shape->count; i++) {
        const uint8_t *const component = h->at + 6 + 3 * i;
        h->ids[i] = component[0];
        h->tables[i] = component[2];
        shape->h[i] = component[1] >> 4;
        shape->v[i] = component[1] & 15;
        if (shape->h[i] < 1 || shape->h[i] > 4 || shape->v[i] < 1 || shape->v[i] > 4) return false;
        if (shape->h[i] > shape->max_h) shape->max_h = shape->h[i];
        if (shape->v[i] > shape->max_v) shape->max_v = shape->v[i];
        for (int k = 0; k < i; k++) {
            if (h->ids[k] == h->ids[i]) return false;
        }
    }
    return true;
}

static void read_application(header *h, uint8_t marker) {
    if (marker == APP9 && !h->jpeg->seek_table && sf_seek_is_table(h->at, left_in(h))) h->jpeg->seek_table = h->at - 4;
    if (marker == APP14 && left_in(h) >= 12 && !memcmp(h->at, "Adobe", 5)) h->transform = h->at[11];
}

/* False: libjpeg-turbo warns of its version. */
static bool read_jfif(header *h) {
    if (left_in(h) < 14 || memcmp(h->at, "JFIF", 5)) return true;
    h->has_jfif = true;
    return h->at[5] == 1;
}

static bool read_segment(header *h, uint8_t marker) {
    switch (marker) {
    case DQT: return read_quantisation(h);
    case DHT: return read_codes(h);
    case SOF0: case SOF1: return read_frame(h);
    case DRI:
        if (left_in(h) != 2) return false;
        h->jpeg->interval = two_bytes(h->at);
        return true;
    case APP0: return read_jfif(h);
    case DNL: case COM: return true; /* libjpeg-turbo skips both */
    default:
        read_application(h, marker);
        return marker > APP0 && marker <= APP15;
    }
}

/* Set the colours of three components, as libjpeg-turbo guesses them. False: libjpeg-turbo warns of them. */
static bool set_colours(const header *h) {
    const bool says = !h->has_jfif && h->transform >= 0;
    h->jpeg->is_rgb = says ? h->transform == 0 : !h->has_jfif && !memcmp(h->ids, "RGB", PLANES);
    return !says || h->transform <= 1;
}

/* Read the header of the scan, which must be the only scan. */
static bool read_scan(header *h) {
    sf_jpeg *const j = h->jpeg;
    const int count = j->shape.count;
    if (!count || left_in(h) != 4 + 2 * (size_t)count || h->at[0] != count) return false;
    for (int i = 0; i < count; i++) {
        const uint8_t *const component = h->at + 1 + 2 * i;
        const unsigned dc = component[1] >> 4, ac = component[1] & 15;
        if (component[0] != h->ids[i] || dc >= NUM_HUFF_TBLS || ac >= NUM_HUFF_TBLS) return false;
        j->dc[i] = &j->codes[0][dc];
        j->ac[i] = &j->codes[1][ac];
        if (!j->dc[i]->counts || !j->ac[i]->counts) return false;
        if (!is_tree(j->dc[i], true) || !is_tree(j->ac[i], false)) return false;
        if (h->tables[i] >= NUM_QUANT_TBLS || !h->steps[h->tables[i]]) return false;
        j->steps[i] = h->steps[h->tables[i]];
        j->wide_steps[i] = h->wide_steps[h->tables[i]];
    }
    const uint8_t *const coefficients = h->at + 1 + 2 * count; /* must be all, in full precision */
    return coefficients[0] == 0 && coefficients[1] == DCTSIZE2 - 1 && coefficients[2] == 0;
}

/* Set the shape of an MCU: with one component it is a block, whatever its sampling factors are. */
static bool set_mcus(sf_jpeg *j) {
    const sf_shape *const shape = &j->shape;
    const bool one = shape->count == 1;
    int blocks = 0;
    for (int i = 0; i < shape->count; i++) {
        j->mcu_h[i] = one ? 1 : shape->h[i];
        j->mcu_v[i] = one ? 1 : shape->v[i];
        blocks += j->mcu_h[i] * j->mcu_v[i];
    }
    j->mcu_width = DCTSIZE * (one ? 1 : shape->max_h);
    j->mcu_height = DCTSIZE * (one ? 1 : shape->max_v);
    j->columns = sf_divide_up(shape->width, j->mcu_width);
    j->rows = sf_divide_up(shape->height, j->mcu_height);
    return blocks <= MAX_BLOCKS_IN_MCU;
}

/* Motion JPEG frames lack tables and use these. */
static void set_standard_codes(sf_jpeg *j) {
    for (int number = 0; number < SF_TABLES; number++) {
        for (int class = 0; class < 2; class++) {
            const sf_standard_codes *const codes = class ? &STANDARD_AC[number] : &STANDARD_DC[number];
            sf_code_lengths *const table = &j->codes[class][number];
            *table = (sf_code_lengths){.counts = codes->counts, .symbols = codes->symbols};
            for (int i = 0; i < 16; i++) table->count += table->counts[i];
        }
    }
}

bool sf_jpeg_read(sf_jpeg *jpeg, const uint8_t *image, size_t size) {
    const uint8_t *at = image, *const end = image + size;
    header h = {.jpeg = jpeg, .transform = -1};
    *jpeg = (sf_jpeg){.image = image, .end = end};
    set_standard_codes(jpeg);
    if (size < 4 || at[0] != 0xFF || at[1] != SOI) return false;
    bool are_segments = true; /* without bytes between them: otherwise no segment counts as a seek table */
    for (at += 2;;) {
        if (end - at < 4 || at[0] != 0xFF) return false;
        if (at[1] == 0xFF) { /* a fill byte */
            are_segments = false;
            at++;
            continue;
        }
        const size_t bytes = two_bytes(at + 2);
        if (bytes < 2 || bytes > (size_t)(end - at) - 2) return false;
        const uint8_t marker = at[1];
        h.at = at + 4;
        h.end = at += 2 + bytes;
        if (marker == SOS) break;
        if (!read_segment(&h, marker)) return false;
    }
    if (!read_scan(&h) || (jpeg->shape.count > 1 && !set_colours(&h))) return false;
    if (!are_segments) jpeg->seek_table = NULL;
    jpeg->scan = at;
    return set_mcus(jpeg);
}

int sf_samples_of_block(const sf_shape *shape, int component, int32_t reduction) {
    const int least = DCTSIZE / reduction;
    int samples = least;
    while (samples < DCTSIZE && shape->max_h * least % (2 * samples * shape->h[component]) == 0 &&
           shape->max_v * least % (2 * samples * shape->v[component]) == 0) {
        samples *= 2;
    }
    return samples;
}

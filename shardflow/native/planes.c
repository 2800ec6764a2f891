#include "planes.h"

#include <string.h>

enum {
    ROWS_AT_ONCE = 4,               /* in the horizontal pass, instead of the channels of RGBX */
    MAX_ROWS_PER_READ = 4 * DCTSIZE, /* of a component */
    NEUTRAL = 128,                  /* of chroma */
};

/* How the stored image becomes the upright one: it is first mirrored along its axes, and then transposed. */
typedef struct {
    bool mirrored[2], transposed;
} turn;

static turn turn_of(int32_t orientation) {
    const int32_t o = orientation;
    return (turn){
        .mirrored = {o == 2 || o == 3 || o == 7 || o == 8, o == 3 || o == 4 || o == 6 || o == 7},
        .transposed = o >= 5,
    };
}

static size_t whole_blocks(size_t bytes) { return (bytes + SF_BLOCK - 1) & ~(size_t)(SF_BLOCK - 1); }

/* ---- filters ---- */

/* The filter that gives what an encoder would make of pixels: it upsamples the component, resizes it, and averages the
 * `pixels` that share a sample. All three steps are linear, so one filter does them, from sample to sample. A simple filter,
 * as wide as a sample of the target, would blur chroma: 1 to 2 dB. */
static void set_axis(sf_decoder *d, const sf_transcoding *t, sf_channel *c, int index, int axis, int32_t pixels) {
    const turn turned = turn_of(t->orientation);
    const int upright = turned.transposed ? 1 - axis : axis;
    const sf_shape *const shape = &d->shape;
    const int size = sf_samples_of_block(shape, index, d->reduction) * (axis ? shape->v : shape->h)[index];
    const int most = DCTSIZE / d->reduction * (axis ? shape->max_v : shape->max_h);
    const int32_t first = t->window[upright], count = t->window[2 + upright];
    const sf_span span = {
        .filter = t->filter,
        .length = (double)t->stored[axis] / d->reduction,
        .high = axis ? d->height : d->width,
        .resized = t->resized[axis],
        .first = turned.mirrored[axis] ? t->resized[axis] - first - count : first,
        .count = count,
        .shared = pixels,
        .mirrored = turned.mirrored[axis],
        .halves = most == 2 * size,
    };
    if (most != size && !span.halves) FAIL(d, SF_UNSUPPORTED, "more than two pixels to a sample");
    c->made[axis] = sf_divide_up(count, pixels);
    sf_need(d, sf_axis_set(&c->axes[axis], &span, axis == 0 && d->loops->packed));
}

static void set_channel(sf_decoder *d, const sf_transcoding *t, sf_channel *c, int index) {
    const bool transposed = turn_of(t->orientation).transposed;
    for (int axis = 0; axis < 2; axis++) {
        set_axis(d, t, c, index, axis, index ? t->sampling[transposed ? 1 - axis : axis] : 1);
    }
}

/* ---- decoding and the horizontal pass ---- */

/* Interleave four rows to one row of four-byte pixels, and back. */
static void weave(uint8_t *const rows[ROWS_AT_ONCE], int32_t width, uint8_t *restrict woven) {
    const uint8_t *const a = rows[0], *const b = rows[1], *const c = rows[2], *const d = rows[3];
    for (int32_t i = 0; i < width; i++, woven += ROWS_AT_ONCE) {
        woven[0] = a[i];
        woven[1] = b[i];
        woven[2] = c[i];
        woven[3] = d[i];
    }
}

static void unweave(const uint8_t *restrict woven, int32_t width, size_t row_bytes, uint8_t *restrict rows) {
    for (int row = 0; row < ROWS_AT_ONCE; row++, rows += row_bytes) {
        for (int32_t i = 0; i < width; i++) rows[i] = woven[ROWS_AT_ONCE * i + row];
    }
}

/* Pass rows `first` to `end` of a component through its horizontal filter. Rows without weight are left out, and rows written
 * after `end` are written again by the next call, or not read. */
static void pass_rows(sf_planes *p, const sf_loops *loops, sf_channel *c, int32_t first, int32_t end) {
    const sf_axis *const across = &c->axes[0], *const down = &c->axes[1];
    const int32_t width = across->high - across->low, begin = first < down->low ? down->low : first;
    uint8_t *const woven = p->woven.data;
    uint8_t *const made = woven + whole_blocks(ROWS_AT_ONCE * ((size_t)width + across->taps + 8));
    if (end > down->high) end = down->high;
    for (int32_t row = begin; row < end; row += ROWS_AT_ONCE) {
        uint8_t *rows[ROWS_AT_ONCE];
        for (int32_t i = 0; i < ROWS_AT_ONCE; i++) {
            const int32_t at = row + i < end ? row + i : end - 1;
            rows[i] = c->decoded + c->row_bytes * (size_t)(at - first) + across->low;
        }
        weave(rows, width, woven);
        loops->horizontal(across, woven, made);
        unweave(made, c->made[0], c->passed_bytes, (uint8_t *)c->passed.data + c->passed_bytes * (size_t)(row - down->low));
    }
}

/* Set where the rows of a component are decoded, and reserve memory for them and for the rows after the horizontal pass. */
static void reserve_channel(sf_decoder *d, sf_channel *c, int index) {
    const int samples = sf_samples_of_block(&d->shape, index, d->reduction);
    const size_t passed = (size_t)(c->axes[1].high - c->axes[1].low) + ROWS_AT_ONCE;
    c->passed_bytes = whole_blocks((size_t)c->made[0]);
    sf_need(d, sf_reserve(&c->passed, c->passed_bytes * passed));
    if (d->is_own) {
        c->lines = d->scan.samples[index].lines;
        c->row_bytes = d->scan.samples[index].stride;
        c->decoded = d->scan.samples[index].rows;
        return;
    }
    const int32_t columns = sf_divide_up(d->shape.width, d->shape.max_h * DCTSIZE); /* of MCUs, the last one whole */
    c->lines = d->shape.v[index] * samples;
    c->row_bytes = whole_blocks((size_t)(columns * d->shape.h[index] * samples));
    sf_need(d, sf_reserve(&c->rows, c->row_bytes * (size_t)(d->reduction * c->lines)));
    c->decoded = c->rows.data;
}

/* The horizontal pass reads after the last pixel, with zero weight: those bytes must be initialised. */
static void reserve_woven(sf_planes *p, sf_decoder *d, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        const sf_channel *const c = &p->channels[i];
        const size_t read = ROWS_AT_ONCE * ((size_t)(c->axes[0].high - c->axes[0].low) + (size_t)c->axes[0].taps + 8);
        const size_t both = whole_blocks(read) + ROWS_AT_ONCE * c->passed_bytes;
        if (both > bytes) bytes = both;
    }
    sf_need(d, sf_reserve(&p->woven, bytes));
    memset(p->woven.data, 0, bytes);
}

/* Decode the next row of MCUs into a slot, by libjpeg-turbo. */
static void read_row(sf_planes *p, sf_decoder *d, int count, int32_t slot) {
    const JDIMENSION lines = (JDIMENSION)(d->shape.max_v * DCTSIZE / d->reduction);
    JSAMPROW rows[PLANES][MAX_ROWS_PER_READ];
    JSAMPARRAY planes[PLANES] = {rows[0], rows[1], rows[2]};
    for (int i = 0; i < count; i++) {
        const sf_channel *const c = &p->channels[i];
        for (int32_t r = 0; r < c->lines; r++) rows[i][r] = c->decoded + c->row_bytes * (size_t)(slot * c->lines + r);
    }
    if (d->library->jpeg_read_raw_data(&d->info, planes, lines) < lines) {
        FAIL(d, SF_CORRUPT, "not a decodable JPEG: it gave no more lines at %u", d->info.output_scanline);
    }
}

/* A row of MCUs of a reduced image has few lines, so several rows go through the horizontal pass at once. */
static void decode(sf_planes *p, sf_decoder *d, int count) {
    const int32_t mcu_height = d->is_own ? d->jpeg.mcu_height : DCTSIZE * d->shape.max_v;
    const int32_t rows = sf_divide_up(d->shape.height, mcu_height);
    for (int i = 0; i < count; i++) reserve_channel(d, &p->channels[i], i);
    reserve_woven(p, d, count);
    for (int32_t row = 0, first = 0; row < rows; first = row) {
        for (int32_t slot = 0; slot < d->reduction && row < rows; slot++, row++) {
            if (d->is_own) sf_need_sound(d, sf_scan_next(&d->scan));
            else read_row(p, d, count, slot);
        }
        for (int i = 0; i < count; i++) {
            sf_channel *const c = &p->channels[i];
            pass_rows(p, d->loops, c, first * c->lines, row * c->lines);
        }
    }
    sf_check_end(d);
}

/* ---- the planes ---- */

static sf_plane new_plane(sf_decoder *d, sf_buffer *buffer, int32_t width, int32_t height) {
    sf_plane plane = {.width = width, .height = height, .row_bytes = whole_blocks((size_t)width)};
    sf_need(d, sf_reserve(buffer, plane.row_bytes * (size_t)height));
    plane.rows = buffer->data;
    return plane;
}

static sf_plane pass_down(sf_planes *p, sf_decoder *d, sf_channel *c) {
    const sf_axis *const down = &c->axes[1];
    const int32_t rows = down->high - down->low;
    const sf_plane plane = new_plane(d, &c->stored, c->made[0], c->made[1]);
    sf_need(d, sf_reserve(&p->pointers, sizeof(uint8_t *) * (size_t)down->taps));
    const uint8_t **const taps = p->pointers.data;
    for (int32_t y = 0; y < plane.height; y++) {
        for (int32_t k = 0; k < down->taps; k++) {
            const int32_t at = down->starts[y] + k < rows ? down->starts[y] + k : rows - 1; /* beyond, weights are zero */
            taps[k] = (const uint8_t *)c->passed.data + c->passed_bytes * (size_t)at;
        }
        d->loops->vertical(taps, 0, down->weights + (size_t)y * (size_t)down->taps, down->taps, down->precision,
                           (size_t)plane.width, plane.rows + plane.row_bytes * (size_t)y);
    }
    return plane;
}

static sf_plane transpose(sf_decoder *d, sf_channel *c, const sf_plane *stored) {
    const sf_plane plane = new_plane(d, &c->upright, stored->height, stored->width);
    for (int32_t y = 0; y < plane.height; y++) {
        uint8_t *const row = plane.rows + plane.row_bytes * (size_t)y;
        for (int32_t x = 0; x < plane.width; x++) row[x] = stored->rows[stored->row_bytes * (size_t)x + (size_t)y];
    }
    return plane;
}

static sf_plane neutral(sf_decoder *d, sf_channel *c, const sf_transcoding *t) {
    const int32_t width = sf_divide_up(t->window[2], t->sampling[0]), height = sf_divide_up(t->window[3], t->sampling[1]);
    const sf_plane plane = new_plane(d, &c->stored, width, height);
    memset(plane.rows, NEUTRAL, plane.row_bytes * (size_t)height);
    return plane;
}

/* The encoder does the same with pixels. */
static void fill_blocks(const sf_plane *plane) {
    const size_t width = (size_t)plane->width, missing = (DCTSIZE - width % DCTSIZE) % DCTSIZE;
    for (int32_t y = 0; missing && y < plane->height; y++) {
        uint8_t *const end = plane->rows + plane->row_bytes * (size_t)y + width;
        memset(end, end[-1], missing);
    }
}

void sf_planes_make(sf_planes *p, sf_decoder *d, const sf_transcoding *t, sf_plane planes[PLANES]) {
    sf_start_planes(d, sf_choose_reduction(t->stored, t->resized, t->oversampling));
    const int count = d->shape.count;
    for (int i = 0; i < count; i++) set_channel(d, t, &p->channels[i], i);
    decode(p, d, count);
    if (d->several_scans) d->library->jpeg_abort_decompress(&d->info); /* frees its coefficients before the planes are allocated */
    for (int i = 0; i < PLANES; i++) {
        sf_channel *const c = &p->channels[i];
        planes[i] = i < count ? pass_down(p, d, c) : neutral(d, c, t);
        if (i < count && turn_of(t->orientation).transposed) planes[i] = transpose(d, c, &planes[i]);
        fill_blocks(&planes[i]);
    }
}

static void each_buffer(sf_planes *planes, void (*work)(sf_buffer *)) {
    for (int i = 0; i < PLANES; i++) {
        sf_channel *const c = &planes->channels[i];
        work(&c->rows);
        work(&c->passed);
        work(&c->stored);
        work(&c->upright);
        work(&c->axes[0].packed_memory);
    }
    work(&planes->woven);
    work(&planes->pointers);
}

void sf_planes_trim(sf_planes *planes) { each_buffer(planes, sf_trim); }

void sf_planes_release(sf_planes *planes) {
    each_buffer(planes, sf_release);
    for (int i = 0; i < PLANES; i++) {
        for (int axis = 0; axis < 2; axis++) sf_axis_release(&planes->channels[i].axes[axis]);
    }
}

#define _XOPEN_SOURCE 700 /* pread */
#include "kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "workspace.h"

enum {
    /* Fancy chroma upsampling reads a neighbour, and partial decoding treats its first column and row as the image's edge.
     * With two more pixels, the crop has the pixels of a full decode. */
    MARGIN = 2,
    /* If scans are missing, progressive images are smoothed across two blocks to each side, and the first decoded column
     * is treated as the image's edge too. So many more iMCUs are enough for smoothing and MARGIN. */
    SMOOTHED_IMCUS = 3,
    /* libjpeg-turbo returns at most one row group per call, which has up to four rows. */
    ROWS_PER_READ = 4,
};

/* The part of an image that its views need, decoded once: rows of RGBX. */
typedef struct {
    int32_t column, line; /* of the image, where it begins */
    size_t row_bytes;
    uint8_t *rows;
} sf_frame;

/* The parts of a batch that concern one image. */
typedef struct {
    const sf_batch *batch;
    const int32_t *box;      /* x, y, width, height; NULL for the whole image until its size is known */
    const int32_t *resized;  /* width, height, left, top */
    const int32_t *expected; /* width, height; may be NULL */
    bool mirrored;
    int32_t out_width, out_height;
    uint8_t *out;
    const uint8_t *pixels; /* of an image that is already decoded, else NULL */
    const sf_frame *frame; /* of an image whose views were decoded together, else NULL */
    int32_t width, height; /* of the image */
    int32_t whole[4];      /* the box if none is given */
    int32_t to_batch[4];   /* the resized size if none is given */
} sf_task;

static void set_task(sf_task *task, const sf_batch *batch, int32_t index) {
    const size_t i = (size_t)index;
    *task = (sf_task){
        .batch = batch,
        .box = batch->boxes ? batch->boxes + 4 * i : NULL,
        .expected = batch->expected ? batch->expected + 2 * i : NULL,
        .mirrored = batch->flips[i] != 0,
        .out_width = batch->width,
        .out_height = batch->height,
        .out = batch->out + batch->image_stride * i,
    };
    if (batch->places) {
        const int64_t *const place = batch->places + 3 * i;
        task->out = batch->out + place[0];
        task->out_width = (int32_t)place[1];
        task->out_height = (int32_t)place[2];
    }
    task->to_batch[0] = task->out_width;
    task->to_batch[1] = task->out_height;
    task->resized = batch->resized ? batch->resized + 4 * i : task->to_batch;
    if (batch->decoded && batch->decoded[2 * i] > 0) {
        task->pixels = batch->images[i];
        task->width = batch->decoded[2 * i];
        task->height = batch->decoded[2 * i + 1];
    }
}

static void check_task(sf_decoder *d, sf_task *task) {
    if (!task->box) {
        task->whole[2] = task->width;
        task->whole[3] = task->height;
        task->box = task->whole;
    }
    const int32_t *box = task->box, *resized = task->resized;
    const int64_t width = task->width, height = task->height;
    if (task->expected && task->expected[0] > 0 && (task->expected[0] != width || task->expected[1] != height)) {
        FAIL(d, SF_WRONG_SIZE, "the image has %d x %d pixels, expected were %d x %d", task->width, task->height,
             task->expected[0], task->expected[1]);
    }
    if (box[0] < 0 || box[1] < 0 || box[2] < 1 || box[3] < 1 || (int64_t)box[0] + box[2] > width ||
        (int64_t)box[1] + box[3] > height) {
        FAIL(d, SF_BAD_BOX, "the crop of %d x %d at (%d, %d) is not inside the image of %d x %d", box[2], box[3],
             box[0], box[1], task->width, task->height);
    }
    if (resized[2] < 0 || resized[3] < 0 || resized[0] > MAX_DIMENSION || resized[1] > MAX_DIMENSION ||
        (int64_t)resized[2] + task->out_width > resized[0] || (int64_t)resized[3] + task->out_height > resized[1]) {
        FAIL(d, SF_BAD_BOX, "the window of %d x %d at (%d, %d) is not inside the resized crop of %d x %d", task->out_width,
             task->out_height, resized[2], resized[3], resized[0], resized[1]);
    }
}

/* The position of a crop on one axis of the (reduced) image. */
typedef struct {
    int32_t start;         /* the pixel in which it begins */
    double offset, length; /* from `start`, in pixels of the reduced image */
    int32_t pixels;        /* number of pixels that it touches */
} extent;

static extent reduce(int32_t start, int32_t length, int32_t reduction, int32_t limit) {
    extent e = {.start = start / reduction, .length = (double)length / reduction};
    e.offset = (double)start / reduction - e.start;
    e.pixels = (int32_t)ceil(e.offset + e.length);
    if (e.pixels > limit - e.start) e.pixels = limit - e.start;
    return e;
}

/* RGB to RGBX with an arbitrary fourth byte. Bytes beyond the last pixel are not read. */
static void widen(const uint8_t *in, int32_t pixels, uint8_t *out) {
    for (int32_t i = 0; i < pixels - 1; i++) memcpy(out + 4 * (size_t)i, in + 3 * (size_t)i, 4);
    memcpy(out + 4 * (size_t)(pixels - 1), in + 3 * (size_t)(pixels - 1), 3);
}

/* The part of an image whose pixels have weight in a task. */
typedef struct {
    int32_t reduction;     /* the image is decoded at 1 / reduction */
    int32_t width, height; /* of the (reduced) image */
    int32_t left, right, top, bottom; /* columns and lines with weight; right and bottom are excluded */
    int32_t column, columns;          /* the first decoded column, and their number */
    int32_t line;                     /* the next line */
    size_t row_bytes;                 /* of a decoded row, RGBX */
    uint8_t *rows[ROWS_PER_READ];
} sf_source;

/* Begin to decode an encoded image. */
static void start_image(sf_decoder *d, int32_t reduction, sf_source *source) {
    sf_start_lines(d, reduction);
    source->reduction = reduction;
    source->width = d->width;
    source->height = d->height;
}

/* Set the filters of both axes, and which columns and lines have weight. */
static void set_axes(sf_workspace *w, const sf_task *task, sf_source *source) {
    sf_decoder *const d = &w->decoder;
    const sf_batch *batch = task->batch;
    const extent across = reduce(task->box[0], task->box[2], source->reduction, source->width);
    const extent down = reduce(task->box[1], task->box[3], source->reduction, source->height);
    const sf_span columns = {
        .filter = batch->filter, .origin = across.offset, .length = across.length, .high = across.pixels,
        .resized = task->resized[0], .first = task->resized[2], .count = task->out_width, .shared = 1, .mirrored = task->mirrored,
    };
    const sf_span lines = {
        .filter = batch->filter, .origin = down.offset, .length = down.length, .high = down.pixels,
        .resized = task->resized[1], .first = task->resized[3], .count = task->out_height, .shared = 1,
    };
    sf_need(d, sf_axis_set(&w->horizontal, &columns, d->loops->packed) && sf_axis_set(&w->vertical, &lines, false));
    source->left = across.start + w->horizontal.low;
    source->right = across.start + w->horizontal.high;
    source->top = down.start + w->vertical.low;
    source->bottom = down.start + w->vertical.high;
}

static int32_t at_least(int32_t value, int32_t least) { return value < least ? least : value; }
static int32_t at_most(int32_t value, int32_t most) { return value > most ? most : value; }

/* Decode only the MCUs of the scan whose pixels have weight, or are read by upsampling. */
static void narrow_own(sf_decoder *d, sf_source *source) {
    const int32_t by = source->reduction;
    const int32_t box[4] = {
        by * at_least(source->left - MARGIN, 0), by * at_least(source->top - MARGIN, 0),
        at_most(by * (source->right + MARGIN), d->shape.width), at_most(by * (source->bottom + MARGIN), d->shape.height),
    };
    const sf_window window = sf_start_window(d, box);
    source->line = source->top;
    source->column = window.left * d->jpeg.mcu_width / by;
    source->columns = (window.right - window.left) * d->jpeg.mcu_width / by;
}

/* Decode only the columns with weight, which libjpeg extends to the left to whole blocks, and only the lines with weight.
 * Lines above are skipped in whole row groups and even numbers, so that each read gives a whole group, and an odd line is
 * never treated as the first of two lines that share a line of chroma. */
static void narrow_library(sf_decoder *d, sf_source *source) {
    struct jpeg_decompress_struct *info = &d->info;
    int32_t margin = MARGIN;
    if (d->several_scans) margin += SMOOTHED_IMCUS * d->shape.max_h * DCTSIZE / source->reduction;
    JDIMENSION column = (JDIMENSION)at_least(source->left - margin, 0);
    JDIMENSION columns = (JDIMENSION)at_most(source->right + MARGIN, source->width) - column;
    d->library->jpeg_crop_scanline(info, &column, &columns);
    const int32_t factor = d->shape.max_v, group = factor * (factor % 2 ? 2 : 1);
    source->line = at_least(source->top - MARGIN, 0) / group * group;
    if (source->line > 0) d->library->jpeg_skip_scanlines(info, (JDIMENSION)source->line);
    source->column = (int32_t)column;
    source->columns = (int32_t)columns;
}

static void narrow(sf_decoder *d, const sf_task *task, sf_source *source) {
    if (task->frame) {
        source->line = source->top;
        source->column = task->frame->column;
    } else if (task->pixels) {
        source->line = source->top;
        source->column = at_least(source->left - MARGIN, 0);
        source->columns = at_most(source->right + MARGIN, source->width) - source->column;
    } else if (d->is_own) {
        narrow_own(d, source);
    } else {
        narrow_library(d, source);
    }
}

/* libjpeg-turbo's colour conversion uses non-temporal stores on 32-byte aligned rows, which evict the row from the cache
 * before it is read: this gives two thirds of the speed. An offset of 16 bytes avoids it. */
static void reserve_rows(sf_workspace *w, sf_source *source) {
    sf_decoder *const d = &w->decoder;
    const size_t slack = 4 * ((size_t)w->horizontal.taps + SF_BLOCK); /* lines are made in whole blocks */
    source->row_bytes = (4 * (size_t)source->columns + slack + 31) & ~(size_t)31;
    sf_need(d, sf_reserve(&w->rows, 16 + ROWS_PER_READ * source->row_bytes));
    for (int i = 0; i < ROWS_PER_READ; i++) {
        source->rows[i] = (uint8_t *)w->rows.data + 16 + i * source->row_bytes;
        memset(source->rows[i] + source->row_bytes - slack, 0, slack); /* read with zero weight */
    }
}

/* Fill `rows` with the next lines; returns how many. */
static int32_t read_rows(sf_decoder *d, const sf_task *task, sf_source *source) {
    if (task->frame) {
        source->rows[0] = task->frame->rows + task->frame->row_bytes * (size_t)(source->line - task->frame->line);
        return 1;
    }
    if (task->pixels) {
        const size_t first = (size_t)source->line * (size_t)source->width + (size_t)source->column;
        widen(task->pixels + 3 * first, source->columns, source->rows[0]);
        return 1;
    }
    if (d->is_own) {
        sf_own_line(d, source->line, source->rows[0]);
        return 1;
    }
    const int32_t left = source->bottom - source->line, wanted = left < ROWS_PER_READ ? left : ROWS_PER_READ;
    const int32_t got = (int32_t)d->library->jpeg_read_scanlines(&d->info, source->rows, (JDIMENSION)wanted);
    if (got <= 0) FAIL(d, SF_CORRUPT, "not a decodable JPEG: it gave no more lines at %d", source->line);
    return got;
}

/* Copy blocks of a constant size, each through a register; the last block ends with the square and may overlap. */
static inline void write_blocks(const uint8_t *row, size_t squares, size_t side, size_t block, uint8_t *out) {
    for (; squares > 0; squares--, row += side, out += 3 * side * side) {
        for (size_t at = 0; at + block < side; at += block) memcpy(out + at, row + at, block);
        memcpy(out + side - block, row + side - block, block);
    }
}

/* Write a row of a plane to the squares that it crosses. */
static void write_squares(const uint8_t *row, size_t squares, size_t side, uint8_t *out) {
    if (side >= 16) write_blocks(row, squares, side, 16, out);
    else if (side >= 8) write_blocks(row, squares, side, 8, out);
    else write_blocks(row, squares, side, 1, out);
}

/* Read, resize and write. Rows of the horizontal pass are kept in a ring, in the layout of the caller's image, which omits
 * the fourth byte: so the vertical pass has less to do, and writes the image directly. */
static void resize(sf_workspace *w, const sf_task *task, sf_source *source) {
    sf_decoder *const d = &w->decoder;
    const sf_batch *batch = task->batch;
    const sf_loops *loops = d->loops;
    const sf_axis *horizontal = &w->horizontal, *vertical = &w->vertical;
    size_t ring_rows = 1; /* a power of two that holds a filter's length and the rows of a read */
    while (ring_rows < (size_t)vertical->taps + ROWS_PER_READ) ring_rows *= 2;
    const size_t width = (size_t)task->out_width, height = (size_t)task->out_height, side = (size_t)batch->patch;
    const size_t plane_bytes = SF_BLOCK * ((width + SF_BLOCK - 1) / SF_BLOCK);
    const size_t made_bytes = 3 * plane_bytes;
    sf_need(d, sf_reserve(&w->ring, made_bytes * ring_rows + 4 * plane_bytes));
    sf_need(d, sf_reserve(&w->pointers, sizeof(uint8_t *) * (size_t)vertical->taps));
    uint8_t *const ring = w->ring.data, *const mixed = ring + made_bytes * ring_rows;
    const uint8_t **const taps = w->pointers.data;
    const size_t shift = 4 * ((size_t)source->left - (size_t)source->column);
    const size_t row_out = (batch->interleaved ? 3 : 1) * width, plane = row_out * height;
    for (int32_t y = 0; y < task->out_height; y++) {
        const int32_t start = source->top + vertical->starts[y];
        const int32_t end = start + vertical->taps < source->bottom ? start + vertical->taps : source->bottom;
        while (source->line < end) {
            const int32_t got = read_rows(d, task, source);
            for (int32_t i = 0; i < got; i++, source->line++) {
                if (source->line < start) continue; /* in the margin, or between two outputs of an extreme reduction */
                uint8_t *const made = ring + made_bytes * ((size_t)source->line & (ring_rows - 1));
                loops->horizontal(horizontal, source->rows[i] + shift, mixed);
                if (batch->interleaved) loops->squeeze(mixed, task->out_width, made);
                else loops->split(mixed, task->out_width, plane_bytes, made);
            }
        }
        for (int32_t k = 0; k < vertical->taps; k++) {
            const int32_t at = start + k < end ? start + k : end - 1; /* beyond the end the weight is zero */
            taps[k] = ring + made_bytes * ((size_t)at & (ring_rows - 1));
        }
        const int16_t *const weights = vertical->weights + (size_t)y * (size_t)vertical->taps;
        for (size_t part = 0; part < (batch->interleaved ? 1 : 3); part++) {
            uint8_t *const row = side ? mixed : task->out + plane * part + row_out * (size_t)y;
            loops->vertical(taps, plane_bytes * part, weights, vertical->taps, vertical->precision, row_out, row);
            if (!side) continue;
            const size_t above = 3 * width * side * ((size_t)y / side), within = side * (side * part + (size_t)y % side);
            write_squares(row, width / side, side, task->out + above + within);
        }
    }
}

/* Decode the smallest part of an image that contains the crops of all its views. After a row the horizontal pass reads the
 * beginning of the next row, with zero weight. The rows have an offset of 16 bytes, as in `reserve_rows`. */
static void decode_frame(sf_workspace *w, const sf_batch *views, int32_t count, int32_t index, sf_frame *frame) {
    sf_decoder *const d = &w->decoder;
    sf_source source = {.left = INT32_MAX, .top = INT32_MAX};
    sf_task task;
    for (int32_t v = count - 1; v >= 0; v--) {
        set_task(&task, views + v, index);
        task.width = d->shape.width;
        task.height = d->shape.height;
        check_task(d, &task);
        const int32_t *box = task.box;
        if (box[0] < source.left) source.left = box[0];
        if (box[1] < source.top) source.top = box[1];
        if (box[0] + box[2] > source.right) source.right = box[0] + box[2];
        if (box[1] + box[3] > source.bottom) source.bottom = box[1] + box[3];
    }
    start_image(d, 1, &source);
    narrow(d, &task, &source);
    frame->column = source.column;
    frame->line = source.line;
    frame->row_bytes = (4 * (size_t)source.columns + 31) & ~(size_t)31;
    const size_t lines = (size_t)(source.bottom - source.line), behind = 4 * ((size_t)source.columns + SF_BLOCK);
    sf_need(d, sf_reserve(&w->frame, 16 + frame->row_bytes * lines + behind));
    frame->rows = (uint8_t *)w->frame.data + 16;
    while (source.line < source.bottom) {
        for (int i = 0; i < ROWS_PER_READ; i++) {
            source.rows[i] = frame->rows + frame->row_bytes * (size_t)(source.line + i - frame->line);
        }
        source.line += read_rows(d, &task, &source);
    }
    sf_check_end(d);
}

static void decode_view(sf_workspace *w, sf_task *task) {
    sf_decoder *const d = &w->decoder;
    check_task(d, task);
    sf_source source = {.reduction = 1, .width = task->width, .height = task->height};
    const bool encoded = !task->pixels && !task->frame;
    if (encoded) start_image(d, sf_choose_reduction(task->box + 2, task->resized, task->batch->oversampling), &source);
    set_axes(w, task, &source);
    narrow(d, task, &source);
    if (!task->frame) reserve_rows(w, &source);
    resize(w, task, &source);
    if (encoded) sf_check_end(d);
}

/* Read and check the parts of a file: right after reading, they are in the processor's cache. */
static void read_file(sf_workspace *w, const sf_batch *batch, const sf_file *file, const uint8_t **image, size_t *size) {
    sf_decoder *const d = &w->decoder;
    sf_need(d, sf_reserve(&w->file, (size_t)file->bytes));
    uint8_t *const bytes = w->file.data;
    for (int64_t done = 0; done < file->bytes;) {
        const ssize_t got = pread((int)file->descriptor, bytes + done, (size_t)(file->bytes - done), file->begin + done);
        if (got <= 0) FAIL(d, SF_UNREAD, "the file cannot be read, or ends before byte %lld", (long long)(file->begin + file->bytes));
        done += got;
    }
    for (const sf_part *part = batch->parts + file->first_part, *end = part + file->parts; part < end; part++) {
        const uint8_t *const at = bytes + (part->offset - file->begin);
        if (sf_crc32(at, (size_t)part->size, d->way) != part->crc32) FAIL(d, SF_UNREAD, "the CRC-32 of a part differs");
        if (part->copy) {
            memcpy((void *)(intptr_t)part->copy, at, (size_t)part->size);
        } else {
            *image = at;
            *size = (size_t)part->size;
        }
    }
}

static bool is_encoded(const sf_batch *batch, int32_t index) {
    return !batch->decoded || batch->decoded[2 * (size_t)index] <= 0;
}

static void decode(sf_workspace *w, const sf_batch *views, int32_t count, int32_t index) {
    sf_decoder *const d = &w->decoder;
    const bool encoded = is_encoded(views, index);
    sf_frame frame;
    d->may_seek = views->seek_tables && views->seek_tables[index];
    if (encoded) {
        const uint8_t *image = views->images[index];
        size_t size = views->sizes[index];
        if (views->files && views->files[index].bytes) read_file(w, views, views->files + index, &image, &size);
        sf_open_image(d, image, size);
        if (count > 1) decode_frame(w, views, count, index, &frame);
    }
    for (int32_t v = 0; v < count; v++) {
        sf_task task;
        set_task(&task, views + v, index);
        if (encoded) {
            task.width = d->shape.width;
            task.height = d->shape.height;
            task.frame = count > 1 ? &frame : NULL;
        }
        decode_view(w, &task);
    }
}

/* Functions that call setjmp have no locals, which would be indeterminate after a longjmp. */
static void try_to_decode(sf_workspace *w, const sf_batch *views, int32_t count, int32_t index, sf_problem *problem) {
    sf_prepare(&w->decoder, &views->limits, problem);
    if (!setjmp(w->decoder.escape)) decode(w, views, count, index);
    if (is_encoded(views, index)) sf_close_image(&w->decoder);
}

static void decode_guarded(sf_workspace *w, const sf_batch *views, int32_t count, int32_t index, sf_problem *problem) {
    do try_to_decode(w, views, count, index, problem);
    while (sf_can_retry_slower(&w->decoder));
}

static void read_header_guarded(sf_decoder *d, const uint8_t *image, size_t size, sf_header *header,
                                sf_problem *problem) {
    static const sf_limits none = {.pixels = INT64_MAX};
    sf_prepare(d, &none, problem);
    if (!setjmp(d->escape)) {
        sf_open_image(d, image, size);
        *header = (sf_header){d->shape.width, d->shape.height, d->shape.count, d->is_progressive};
    }
    sf_close_image(d);
}

static void write_seek_table_guarded(sf_decoder *d, const uint8_t *image, size_t size, const sf_limits *limits,
                                     uint8_t *segment, size_t *bytes, sf_problem *problem) {
    sf_prepare(d, limits, problem);
    if (!setjmp(d->escape)) {
        sf_open_image(d, image, size);
        *bytes = sf_write_seek_table(d, segment);
    }
    sf_close_image(d);
}

/* ---- public ---- */

int32_t sf_abi(void) { return SF_ABI; }

sf_workspace *sf_workspace_new(const sf_library *library, enum sf_way way) {
    sf_workspace *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    sf_decoder_init(&w->decoder, library, way);
    sf_encoder_init(&w->transcoder.encoder, way == SF_FAST);
    const char *const own = w->decoder.way == SF_BY_LIBRARY ? "" : ", own Huffman decoding";
    snprintf(w->about, sizeof w->about, "%s%s", w->decoder.loops->name, own);
    return w;
}

void sf_workspace_free(sf_workspace *w) {
    if (!w) return;
    sf_decoder_release(&w->decoder);
    sf_axis_release(&w->horizontal);
    sf_axis_release(&w->vertical);
    sf_release(&w->file);
    sf_release(&w->frame);
    sf_release(&w->rows);
    sf_release(&w->ring);
    sf_release(&w->pointers);
    sf_planes_release(&w->transcoder.planes);
    sf_encoder_release(&w->transcoder.encoder);
    free(w);
}

const char *sf_workspace_about(const sf_workspace *w) { return w->about; }

int64_t sf_workspace_faults(const sf_workspace *w) { return w->decoder.faults; }

int32_t sf_decode(sf_workspace *w, const sf_batch *views, int32_t count, sf_problem *problems) {
    int32_t found = 0;
    for (int32_t i = 0; i < views->count; i++) {
        sf_problem *problem = &problems[found];
        decode_guarded(w, views, count, i, problem);
        sf_decoder_trim(&w->decoder);
        sf_trim(&w->file);
        sf_trim(&w->frame);
        sf_trim(&w->ring);
        sf_trim(&w->horizontal.packed_memory);
        if (problem->status == SF_OK) continue;
        for (int32_t v = 0; v < count && problem->status != SF_DAMAGED; v++) {
            sf_task task;
            set_task(&task, views + v, i);
            memset(task.out, 0, 3 * (size_t)task.out_width * (size_t)task.out_height);
        }
        problem->index = i;
        found++;
    }
    return found;
}

int32_t sf_read_header(sf_workspace *w, const uint8_t *image, size_t size, sf_header *header, sf_problem *problem) {
    read_header_guarded(&w->decoder, image, size, header, problem);
    if (problem->status == SF_DAMAGED) problem->status = SF_OK; /* a warning about the header concerns the decoder */
    return problem->status;
}

int32_t sf_seek_table_of(sf_workspace *w, const uint8_t *image, size_t size, const sf_limits *limits, uint8_t *segment,
                         size_t *bytes, sf_problem *problem) {
    *bytes = 0;
    write_seek_table_guarded(&w->decoder, image, size, limits, segment, bytes, problem);
    sf_decoder_trim(&w->decoder);
    return problem->status;
}

/* Each channel to linear light, a matrix, and each channel back: the same integers as `_colour` without the kernel. */
void sf_convert_colours(uint8_t *pixels, size_t count, const sf_colour_tables *tables) {
    for (; count; count--, pixels += 3) {
        int32_t light[3];
        for (int i = 0; i < 3; i++) light[i] = tables->linear[i][pixels[i]];
        for (int i = 0; i < 3; i++) {
            const int32_t *const row = tables->matrix[i];
            const int32_t sum = row[0] * light[0] + row[1] * light[1] + row[2] * light[2];
            const int32_t place = (sum + (1 << (SF_MATRIX_BITS - 1))) >> SF_MATRIX_BITS;
            pixels[i] = tables->encoded[place < 0 ? 0 : place >= SF_LIGHT_LEVELS ? SF_LIGHT_LEVELS - 1 : place];
        }
    }
}

#include "kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entropy.h"
#include "libjpeg.h"
#include "resample.h"

enum {
    /* Fancy chroma upsampling looks at a neighbour, and partial decoding takes the first column and row it is asked for
     * as the image's edge. Two pixels more make the crop's pixels those of a full decode. */
    MARGIN = 2,
    /* Where scans are missing, progressive images are smoothed across neighbouring blocks, two to each side, and the
     * first decoded column is taken for the image's edge as well. So many iMCUs more are enough for that and MARGIN. */
    SMOOTHED_IMCUS = 3,
    /* libjpeg-turbo hands out at most one row group per call, which is up to four rows. */
    ROWS_PER_READ = 4,
    /* What a decoder of whole images takes of each pixel: four bytes, and two more of each component where coefficients
     * are kept from scan to scan. Not all of it is taken here; but which images are too large must not depend on it. */
    PIXEL_BYTES = 4,
    COEFFICIENT_BYTES = 2,
    /* How many images share a decompressor; see open_image. */
    IMAGES_PER_DECOMPRESSOR = 16,
    /* What one image may leave behind for the next; a giant one returns its memory. */
    KEEP_BYTES = 32 << 20,
};

struct sf_decoder {
    const struct sf_library *jpeg;
    const sf_loops *loops;
    char about[64];
    bool own_entropy; /* whether scans are decoded by `entropy` where it can, */
    bool found_fault; /* which it could not with the image at hand, */
    int64_t faults;   /* nor with so many in all */
    sf_entropy entropy;
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    int32_t images_left; /* before `info` is made anew; 0: there is none */
    jmp_buf escape;
    const sf_limits *limits; /* of the image at hand */
    sf_problem *problem;
    const uint8_t *image_end;
    sf_axis horizontal, vertical;
    sf_buffer frame, rows, ring, pointers;
};

/* ---- problems ---- */

static void describe(sf_decoder *d, int status, const char *format, ...) {
    d->problem->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->problem->message, SF_MESSAGE_BYTES, format, arguments);
    va_end(arguments);
}

/* Every failure below the two setjmp calls in this file ends here. Nothing on the way holds memory of its own: buffers
 * belong to the decoder and libjpeg's pools are freed by the callers of setjmp. */
#define FAIL(d, ...) (describe(d, __VA_ARGS__), longjmp((d)->escape, 1))

static void on_error(j_common_ptr info) {
    sf_decoder *d = info->client_data;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    /* Frames that it does not know, such as lossless ones, and what it was built without. By their words: the numbers of
     * its messages differ from version to version. */
    if (strstr(text, "Unsupported JPEG process") || strstr(text, "not implemented")) FAIL(d, SF_UNSUPPORTED, "%s", text);
    FAIL(d, SF_CORRUPT, "not a decodable JPEG: %s", text);
}

static void on_message(j_common_ptr info, int level) {
    if (level >= 0 || info->err->num_warnings++ > 0) return; /* the first warning says where it went wrong */
    sf_decoder *d = info->client_data;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    describe(d, SF_DAMAGED, "%s", text);
}

static void on_output(j_common_ptr info) { (void)info; /* a library does not print */ }

static int64_t pixels_of(const sf_decoder *d) { return (int64_t)d->info.image_width * d->info.image_height; }

static void on_progress(j_common_ptr info) {
    sf_decoder *d = info->client_data;
    const int64_t scans = d->info.input_scan_number;
    if (scans <= d->limits->scans && scans * pixels_of(d) <= d->limits->scan_pixels) return;
    FAIL(d, SF_TOO_LARGE, "has %u x %u pixels in %lld scans or more; the limits are %lld scans, and %lld pixels in all",
         d->info.image_width, d->info.image_height, (long long)scans, (long long)d->limits->scans,
         (long long)d->limits->scan_pixels);
}

/* ---- source: the image's bytes, where they are ---- */

static void on_source_start(j_decompress_ptr info) { (void)info; }

static void on_source_end(j_decompress_ptr info) { (void)info; }

/* libjpeg's own memory source invents an end marker here and goes on in grey; a cut image must not pass for a whole. */
static boolean on_source_empty(j_decompress_ptr info) {
    FAIL((sf_decoder *)info->client_data, SF_TRUNCATED, "the JPEG ends before its image does");
    return FALSE;
}

static void on_source_skip(j_decompress_ptr info, long bytes) {
    if (bytes <= 0) return;
    if ((size_t)bytes > info->src->bytes_in_buffer) on_source_empty(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}

/* ---- one image ---- */

/* Point the decompressor at an image, in the state of a new one.
 *
 * It is reused, because some versions ask the processor for its abilities whenever one is made, which costs 10 us in
 * a virtual machine. What libjpeg keeps from the image before are its tables, so that a file without tables of its own
 * would be decoded with its neighbour's. Forgotten, they stay allocated (about 2 KB) until the decompressor goes, and
 * lengthen a list that every allocation walks: hence few images per decompressor. */
static void open_image(sf_decoder *d, const uint8_t *image, size_t size) {
    struct jpeg_decompress_struct *info = &d->info;
    d->image_end = image + size;
    if (d->images_left == 0) {
        sf_create_decompress(d->jpeg, info);
        d->images_left = IMAGES_PER_DECOMPRESSOR;
    }
    for (int i = 0; i < NUM_QUANT_TBLS; i++) info->quant_tbl_ptrs[i] = NULL;
    for (int i = 0; i < NUM_HUFF_TBLS; i++) info->dc_huff_tbl_ptrs[i] = info->ac_huff_tbl_ptrs[i] = NULL;
    info->progress = NULL;
    d->source = (struct jpeg_source_mgr){
        .next_input_byte = image,
        .bytes_in_buffer = size,
        .init_source = on_source_start,
        .fill_input_buffer = on_source_empty,
        .skip_input_data = on_source_skip,
        .resync_to_restart = d->jpeg->jpeg_resync_to_restart,
        .term_source = on_source_end,
    };
    info->src = &d->source;
    d->jpeg->jpeg_read_header(info, TRUE);
    if (pixels_of(d) > d->limits->pixels) {
        FAIL(d, SF_TOO_LARGE, "has %u x %u pixels; the limit is %lld", info->image_width, info->image_height,
             (long long)d->limits->pixels);
    }
}

/* After a problem nothing is reused. */
static void close_image(sf_decoder *d) {
    if (--d->images_left > 0 && d->problem->status == SF_OK) {
        d->jpeg->jpeg_abort_decompress(&d->info);
    } else {
        d->jpeg->jpeg_destroy_decompress(&d->info);
        d->images_left = 0;
    }
}

static void prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem) {
    d->limits = limits;
    d->problem = problem;
    problem->status = SF_OK;
    problem->message[0] = 0;
    d->info.err = d->jpeg->jpeg_std_error(&d->errors);
    d->info.client_data = d;
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
}

/* What the views of an image need of it, decoded once: rows of RGBX. */
typedef struct {
    int32_t column, line; /* of the image, where it begins */
    size_t row_bytes;
    uint8_t *rows;
} sf_frame;

/* The parts of a batch that concern one image. */
typedef struct {
    const sf_batch *batch;
    const int32_t *box;      /* x, y, width, height; NULL until the size is known where the whole image is meant */
    const int32_t *resized;  /* width, height, left, top */
    const int32_t *expected; /* width, height; may be NULL */
    bool mirrored;
    uint8_t *out;
    const uint8_t *pixels; /* of an image that is decoded already, else NULL */
    const sf_frame *frame; /* of one whose views were decoded together, else NULL */
    int32_t width, height; /* of the image */
    int32_t whole[4];      /* the box where there is none */
    int32_t to_batch[4];   /* what the box is resized to where nothing else is said */
} sf_task;

static void set_task(sf_task *task, const sf_batch *batch, int32_t index) {
    const size_t i = (size_t)index;
    *task = (sf_task){
        .batch = batch,
        .box = batch->boxes ? batch->boxes + 4 * i : NULL,
        .expected = batch->expected ? batch->expected + 2 * i : NULL,
        .mirrored = batch->flips[i] != 0,
        .out = batch->out + batch->image_stride * i,
        .to_batch = {batch->width, batch->height},
    };
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
    const sf_batch *batch = task->batch;
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
    if (resized[2] < 0 || resized[3] < 0 || resized[0] > JPEG_MAX_DIMENSION || resized[1] > JPEG_MAX_DIMENSION ||
        (int64_t)resized[2] + batch->width > resized[0] || (int64_t)resized[3] + batch->height > resized[1]) {
        FAIL(d, SF_BAD_BOX, "the window of %d x %d at (%d, %d) is not inside the resized crop of %d x %d", batch->width,
             batch->height, resized[2], resized[3], resized[0], resized[1]);
    }
}

static void check_coding(sf_decoder *d) {
    const struct jpeg_decompress_struct *info = &d->info;
    const J_COLOR_SPACE space = info->jpeg_color_space;
    if (space != JCS_YCbCr && space != JCS_GRAYSCALE && space != JCS_RGB) {
        FAIL(d, SF_UNSUPPORTED, "%d components that are neither grey nor RGB (CMYK?)", info->num_components);
    }
    if (info->data_precision != 8) FAIL(d, SF_UNSUPPORTED, "%d bits per component, not 8", info->data_precision);
    const sf_coding coding = sf_coding_of(d->jpeg, info);
    if (coding.arithmetic) FAIL(d, SF_UNSUPPORTED, "arithmetic coding");
    /* Their scans have no coefficients, but a predictor in place of the first one's number. */
    if (!coding.progressive && coding.Ss > 0 && coding.Se == 0) FAIL(d, SF_UNSUPPORTED, "lossless coding");
}

/* Whether the image comes in several scans. */
static bool has_several_scans(const sf_decoder *d) {
    const sf_coding coding = sf_coding_of(d->jpeg, &d->info);
    return coding.progressive || coding.comps_in_scan < d->info.num_components;
}

static void check_scans(sf_decoder *d) {
    const int64_t bytes = pixels_of(d) * (PIXEL_BYTES + COEFFICIENT_BYTES * d->info.num_components);
    if (bytes <= d->limits->memory_bytes) return;
    FAIL(d, SF_TOO_LARGE, "has %u x %u pixels in several scans, which take %lld bytes to decode; the limit is %lld",
         d->info.image_width, d->info.image_height, (long long)bytes, (long long)d->limits->memory_bytes);
}

/* The position of a crop on one axis of the (reduced) image. */
typedef struct {
    int32_t start;         /* the whole pixel it begins in */
    double offset, length; /* from `start`, in pixels of the reduced image */
    int32_t pixels;        /* it touches this many */
} extent;

static extent reduce(int32_t start, int32_t length, int32_t reduction, int32_t limit) {
    extent e = {.start = start / reduction, .length = (double)length / reduction};
    e.offset = (double)start / reduction - e.start;
    e.pixels = (int32_t)ceil(e.offset + e.length);
    if (e.pixels > limit - e.start) e.pixels = limit - e.start;
    return e;
}

static int32_t choose_reduction(const sf_task *task) {
    const int64_t oversampling = task->batch->oversampling;
    int32_t reduction = 1;
    while (oversampling > 0 && reduction < 8 && task->box[2] >= 2 * reduction * oversampling * task->resized[0] &&
           task->box[3] >= 2 * reduction * oversampling * task->resized[1]) {
        reduction *= 2;
    }
    return reduction;
}

static void need(sf_decoder *d, bool got) {
    if (!got) FAIL(d, SF_NO_MEMORY, "not enough memory, or an image that needs too much of it");
}

/* Whether the part of a sequential image below the crop, which is not decoded, ends in an end marker: otherwise a file
 * cut there would pass. Inside entropy-coded data FF is never followed by D9, so any end marker is a real one. */
static bool has_end_marker(const sf_decoder *d) {
    if (sf_coding_of(d->jpeg, &d->info).unread_marker == JPEG_EOI) return true;
    const uint8_t *at = d->source.next_input_byte, *end = d->image_end;
    if (end - at >= 2 && end[-2] == 0xFF && end[-1] == JPEG_EOI) return true;
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at))) && ++at < end) {
        if (*at == JPEG_EOI) return true;
    }
    return false;
}

/* RGB to RGBX, the fourth byte arbitrary. Nothing beyond the last pixel is read. */
static void widen(const uint8_t *in, int32_t pixels, uint8_t *out) {
    for (int32_t i = 0; i < pixels - 1; i++) memcpy(out + 4 * (size_t)i, in + 3 * (size_t)i, 4);
    memcpy(out + 4 * (size_t)(pixels - 1), in + 3 * (size_t)(pixels - 1), 3);
}

/* Decode an MCU in libjpeg-turbo's place. */
static boolean on_mcu(j_decompress_ptr info, JBLOCKROW *into) {
    sf_decoder *d = info->client_data;
    if (!sf_entropy_decode(&d->entropy, into)) {
        d->found_fault = true;
        FAIL(d, SF_CORRUPT, "a fault in its Huffman codes");
    }
    return TRUE;
}

/* The pixels that a task's image is made of: the part of an image that carries weight. */
typedef struct {
    int32_t reduction;     /* by which the image is decoded */
    int32_t width, height; /* of the (reduced) image */
    bool several_scans;
    int32_t left, right, top, bottom; /* columns and lines that carry weight, the last ones excluded */
    int32_t column, columns;          /* that are decoded: the first one, and how many */
    int32_t line;                     /* the next one */
    size_t row_bytes;                 /* of a decoded row, RGBX */
    uint8_t *rows[ROWS_PER_READ];
} sf_source;

/* Begin to decode an encoded image. */
static void start_image(sf_decoder *d, int32_t reduction, sf_source *source) {
    struct jpeg_decompress_struct *info = &d->info;
    check_coding(d);
    source->several_scans = has_several_scans(d);
    if (source->several_scans) {
        check_scans(d);
        d->progress = (struct jpeg_progress_mgr){.progress_monitor = on_progress};
        info->progress = &d->progress;
    }
    source->reduction = reduction;
    info->scale_num = 1;
    info->scale_denom = (unsigned)reduction;
    info->out_color_space = JCS_EXT_RGBX; /* grey is replicated; four bytes per pixel suit the vector loops */
    d->jpeg->jpeg_start_decompress(info);
    if (d->own_entropy && !d->found_fault && !source->several_scans) {
        sf_entropy_start(&d->entropy, info, sf_coding_of(d->jpeg, info), on_mcu);
    }
    source->width = (int32_t)info->output_width;
    source->height = (int32_t)info->output_height;
}

/* Set the filters of both axes, which say what columns and lines carry weight. */
static void set_axes(sf_decoder *d, const sf_task *task, sf_source *source) {
    const sf_batch *batch = task->batch;
    const extent across = reduce(task->box[0], task->box[2], source->reduction, source->width);
    const extent down = reduce(task->box[1], task->box[3], source->reduction, source->height);
    const sf_span columns = {
        .filter = batch->filter, .origin = across.offset, .length = across.length, .high = across.pixels,
        .resized = task->resized[0], .first = task->resized[2], .count = batch->width, .mirrored = task->mirrored,
    };
    const sf_span lines = {
        .filter = batch->filter, .origin = down.offset, .length = down.length, .high = down.pixels,
        .resized = task->resized[1], .first = task->resized[3], .count = batch->height,
    };
    need(d, sf_axis_set(&d->horizontal, &columns, d->loops->packed) && sf_axis_set(&d->vertical, &lines, false));
    source->left = across.start + d->horizontal.low;
    source->right = across.start + d->horizontal.high;
    source->top = down.start + d->vertical.low;
    source->bottom = down.start + d->vertical.high;
}

/* Decode only the columns that carry weight; libjpeg widens them to the left to whole blocks. And only the lines: those
 * above are skipped in whole row groups and even numbers, so that each read gives a whole group, and an odd line is never
 * taken for the first of the two that share a line of chroma. */
static void narrow(sf_decoder *d, const sf_task *task, sf_source *source) {
    struct jpeg_decompress_struct *info = &d->info;
    if (task->frame) {
        source->line = source->top;
        source->column = task->frame->column;
        return;
    }
    int32_t margin = MARGIN;
    if (source->several_scans) {
        margin += SMOOTHED_IMCUS * sf_coding_of(d->jpeg, info).max_h_samp_factor * DCTSIZE / source->reduction;
    }
    JDIMENSION column = source->left > margin ? (JDIMENSION)(source->left - margin) : 0;
    JDIMENSION columns = (JDIMENSION)source->right + MARGIN;
    if (columns > (JDIMENSION)source->width) columns = (JDIMENSION)source->width;
    columns -= column;
    source->line = source->top;
    if (!task->pixels) {
        d->jpeg->jpeg_crop_scanline(info, &column, &columns);
        const int32_t factor = sf_coding_of(d->jpeg, info).max_v_samp_factor, group = factor * (factor % 2 ? 2 : 1);
        source->line = source->top > MARGIN ? (source->top - MARGIN) / group * group : 0;
        if (source->line > 0) d->jpeg->jpeg_skip_scanlines(info, (JDIMENSION)source->line);
    }
    source->column = (int32_t)column;
    source->columns = (int32_t)columns;
}

/* The colour conversion of libjpeg-turbo uses non-temporal stores on 32-byte aligned rows, which push the row out of the
 * cache it is about to be read from: two thirds of the speed. 16 bytes off is enough to avoid it. */
static void reserve_rows(sf_decoder *d, sf_source *source) {
    const size_t slack = 4 * ((size_t)d->horizontal.taps + 8);
    source->row_bytes = (4 * (size_t)source->columns + slack + 31) & ~(size_t)31;
    need(d, sf_reserve(&d->rows, 16 + ROWS_PER_READ * source->row_bytes));
    for (int i = 0; i < ROWS_PER_READ; i++) {
        source->rows[i] = (uint8_t *)d->rows.data + 16 + i * source->row_bytes;
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
    const int32_t left = source->bottom - source->line, wanted = left < ROWS_PER_READ ? left : ROWS_PER_READ;
    const int32_t got = (int32_t)d->jpeg->jpeg_read_scanlines(&d->info, source->rows, (JDIMENSION)wanted);
    if (got <= 0) FAIL(d, SF_CORRUPT, "not a decodable JPEG: it gave no more lines at %d", source->line);
    return got;
}

/* Read, resize and write. Rows that went through the horizontal pass live in a ring, in the layout of the caller's image,
 * which leaves out the fourth byte: less to do for the vertical pass, which then writes the image itself. */
static void resize(sf_decoder *d, const sf_task *task, sf_source *source) {
    const sf_batch *batch = task->batch;
    const sf_loops *loops = d->loops;
    const sf_axis *horizontal = &d->horizontal, *vertical = &d->vertical;
    size_t ring_rows = 1; /* a power of two that holds a filter's length and what a read may add */
    while (ring_rows < (size_t)vertical->taps + ROWS_PER_READ) ring_rows *= 2;
    const size_t plane_bytes = SF_BLOCK * (((size_t)batch->width + SF_BLOCK - 1) / SF_BLOCK);
    const size_t made_bytes = 3 * plane_bytes;
    need(d, sf_reserve(&d->ring, made_bytes * ring_rows + 4 * plane_bytes));
    need(d, sf_reserve(&d->pointers, sizeof(uint8_t *) * (size_t)vertical->taps));
    uint8_t *const ring = d->ring.data, *const mixed = ring + made_bytes * ring_rows;
    const uint8_t **const taps = d->pointers.data;
    const size_t shift = 4 * ((size_t)source->left - (size_t)source->column);
    const size_t row_out = (batch->interleaved ? 3 : 1) * (size_t)batch->width, plane = row_out * (size_t)batch->height;
    for (int32_t y = 0; y < batch->height; y++) {
        const int32_t start = source->top + vertical->starts[y];
        const int32_t end = start + vertical->taps < source->bottom ? start + vertical->taps : source->bottom;
        while (source->line < end) {
            const int32_t got = read_rows(d, task, source);
            for (int32_t i = 0; i < got; i++, source->line++) {
                if (source->line < start) continue; /* of the margin, or between two outputs of an extreme reduction */
                uint8_t *const made = ring + made_bytes * ((size_t)source->line & (ring_rows - 1));
                loops->horizontal(horizontal, source->rows[i] + shift, mixed);
                if (batch->interleaved) loops->squeeze(mixed, batch->width, made);
                else loops->split(mixed, batch->width, plane_bytes, made);
            }
        }
        for (int32_t k = 0; k < vertical->taps; k++) {
            const int32_t at = start + k < end ? start + k : end - 1; /* beyond the end the weight is zero */
            taps[k] = ring + made_bytes * ((size_t)at & (ring_rows - 1));
        }
        const int16_t *const weights = vertical->weights + (size_t)y * (size_t)vertical->taps;
        for (size_t part = 0; part < (batch->interleaved ? 1 : 3); part++) {
            loops->vertical(taps, plane_bytes * part, weights, vertical->taps, vertical->precision, row_out,
                            task->out + plane * part + row_out * (size_t)y);
        }
    }
}

/* Decode the smallest part of an image that holds the crops of all its views. Rows end in what the horizontal pass reads
 * behind them, with zero weight: the begin of the next row. They are off 32 bytes as those of `reserve_rows`. */
static void decode_frame(sf_decoder *d, const sf_batch *views, int32_t count, int32_t index, sf_frame *frame) {
    sf_source source = {.left = INT32_MAX, .top = INT32_MAX};
    sf_task task;
    for (int32_t v = count - 1; v >= 0; v--) {
        set_task(&task, views + v, index);
        task.width = (int32_t)d->info.image_width;
        task.height = (int32_t)d->info.image_height;
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
    need(d, sf_reserve(&d->frame, 16 + frame->row_bytes * lines + behind));
    frame->rows = (uint8_t *)d->frame.data + 16;
    while (source.line < source.bottom) {
        for (int i = 0; i < ROWS_PER_READ; i++) {
            source.rows[i] = frame->rows + frame->row_bytes * (size_t)(source.line + i - frame->line);
        }
        source.line += read_rows(d, &task, &source);
    }
    if (!source.several_scans && !has_end_marker(d)) on_source_empty(&d->info);
}

static void decode_view(sf_decoder *d, sf_task *task) {
    check_task(d, task);
    sf_source source = {.reduction = 1, .width = task->width, .height = task->height};
    const bool encoded = !task->pixels && !task->frame;
    if (encoded) start_image(d, choose_reduction(task), &source);
    set_axes(d, task, &source);
    narrow(d, task, &source);
    if (!task->frame) reserve_rows(d, &source);
    resize(d, task, &source);
    if (encoded && !source.several_scans && !has_end_marker(d)) on_source_empty(&d->info);
}

static bool is_encoded(const sf_batch *batch, int32_t index) {
    return !batch->decoded || batch->decoded[2 * (size_t)index] <= 0;
}

static void decode(sf_decoder *d, const sf_batch *views, int32_t count, int32_t index) {
    const bool encoded = is_encoded(views, index);
    sf_frame frame;
    if (encoded) {
        open_image(d, views->images[index], views->sizes[index]);
        if (count > 1) decode_frame(d, views, count, index, &frame);
    }
    for (int32_t v = 0; v < count; v++) {
        sf_task task;
        set_task(&task, views + v, index);
        if (encoded) {
            task.width = (int32_t)d->info.image_width;
            task.height = (int32_t)d->info.image_height;
            task.frame = count > 1 ? &frame : NULL;
        }
        decode_view(d, &task);
    }
}

/* setjmp is called in functions without locals of their own, so that none is indeterminate after a longjmp. */
static void try_to_decode(sf_decoder *d, const sf_batch *views, int32_t count, int32_t index, sf_problem *problem) {
    prepare(d, &views->limits, problem);
    if (!setjmp(d->escape)) decode(d, views, count, index);
    if (is_encoded(views, index)) close_image(d);
}

static void decode_guarded(sf_decoder *d, const sf_batch *views, int32_t count, int32_t index, sf_problem *problem) {
    d->found_fault = false;
    try_to_decode(d, views, count, index, problem);
    if (!d->found_fault) return;
    d->faults++;
    try_to_decode(d, views, count, index, problem); /* libjpeg-turbo says what it is, and what there is to see */
}

static void read_header_guarded(sf_decoder *d, const uint8_t *image, size_t size, sf_header *header,
                                sf_problem *problem) {
    static const sf_limits none = {.pixels = INT64_MAX};
    prepare(d, &none, problem);
    if (!setjmp(d->escape)) {
        open_image(d, image, size);
        header->width = (int32_t)d->info.image_width;
        header->height = (int32_t)d->info.image_height;
        header->components = d->info.num_components;
        header->progressive = sf_coding_of(d->jpeg, &d->info).progressive;
    }
    close_image(d);
}

static void trim(sf_buffer *buffer) {
    if (buffer->bytes > KEEP_BYTES) sf_release(buffer);
}

/* ---- public ---- */

int32_t sf_abi(void) { return SF_ABI; }

sf_decoder *sf_decoder_new(const sf_library *library, int32_t fast) {
    sf_decoder *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->jpeg = library;
    d->loops = sf_loops_choose(fast != 0);
    d->own_entropy = fast && library->asks_for_mcus;
    snprintf(d->about, sizeof d->about, "%s%s", d->loops->name, d->own_entropy ? ", Huffman decoding of its own" : "");
    return d;
}

void sf_decoder_free(sf_decoder *d) {
    if (!d) return;
    if (d->images_left) d->jpeg->jpeg_destroy_decompress(&d->info);
    sf_axis_release(&d->horizontal);
    sf_axis_release(&d->vertical);
    sf_release(&d->entropy.data);
    sf_release(&d->frame);
    sf_release(&d->rows);
    sf_release(&d->ring);
    sf_release(&d->pointers);
    free(d);
}

const char *sf_decoder_about(const sf_decoder *d) { return d->about; }

int64_t sf_decoder_faults(const sf_decoder *d) { return d->faults; }

int32_t sf_decode(sf_decoder *d, const sf_batch *views, int32_t count, sf_problem *problems) {
    int32_t found = 0;
    for (int32_t i = 0; i < views->count; i++) {
        sf_problem *problem = &problems[found];
        decode_guarded(d, views, count, i, problem);
        trim(&d->entropy.data);
        trim(&d->frame);
        trim(&d->ring);
        trim(&d->horizontal.packed_memory);
        if (problem->status == SF_OK) continue;
        for (int32_t v = 0; v < count && problem->status != SF_DAMAGED; v++) {
            const sf_batch *view = views + v;
            memset(view->out + view->image_stride * (size_t)i, 0, 3 * (size_t)view->width * view->height);
        }
        problem->index = i;
        found++;
    }
    return found;
}

int32_t sf_read_header(sf_decoder *d, const uint8_t *image, size_t size, sf_header *header, sf_problem *problem) {
    read_header_guarded(d, image, size, header, problem);
    if (problem->status == SF_DAMAGED) problem->status = SF_OK; /* a warning about the header concerns the decoder */
    return problem->status;
}

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
    /* libjpeg-turbo hands out at most one row group per call, which is up to four rows. */
    ROWS_PER_READ = 4,
    /* A progressive file of a few kilobytes can ask for thousands of passes over all its pixels. */
    MAX_SCANS = 500,
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
    sf_problem *problem; /* of the image at hand */
    const uint8_t *image_end;
    sf_axis horizontal, vertical;
    sf_buffer rows, ring, pointers;
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

static void on_progress(j_common_ptr info) {
    sf_decoder *d = info->client_data;
    if (d->info.input_scan_number > MAX_SCANS) FAIL(d, SF_TOO_LARGE, "more than %d scans", MAX_SCANS);
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
static void open_image(sf_decoder *d, const uint8_t *image, size_t size, int64_t max_pixels) {
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
    if ((int64_t)info->image_width * info->image_height > max_pixels) {
        FAIL(d, SF_TOO_LARGE, "%u x %u pixels, more than the %lld allowed", info->image_width, info->image_height,
             (long long)max_pixels);
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

static void prepare(sf_decoder *d, sf_problem *problem) {
    d->problem = problem;
    problem->status = SF_OK;
    problem->message[0] = 0;
    d->info.err = d->jpeg->jpeg_std_error(&d->errors);
    d->info.client_data = d;
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
}

/* The parts of a batch that concern one image. */
typedef struct {
    const sf_batch *batch;
    const int32_t *box;      /* x, y, width, height; NULL until the size is known where the whole image is meant */
    const int32_t *resized;  /* width, height, left, top */
    const int32_t *expected; /* width, height; may be NULL */
    bool mirrored;
    uint8_t *out;
    const uint8_t *pixels; /* of an image that is decoded already, else NULL */
    int32_t width, height; /* of the image */
    int32_t whole[4];      /* the box where there is none */
} sf_task;

static void check_task(sf_decoder *d, const sf_task *task) {
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
    if (sf_coding_of(d->jpeg, info).arithmetic) FAIL(d, SF_UNSUPPORTED, "arithmetic coding");
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

/* Begin to decode; returns by how much the image is reduced, and says whether it comes in several scans. */
static int32_t start_image(sf_decoder *d, const sf_task *task, bool *several_scans) {
    struct jpeg_decompress_struct *info = &d->info;
    check_coding(d);
    const sf_coding coding = sf_coding_of(d->jpeg, info);
    *several_scans = coding.progressive || coding.comps_in_scan < info->num_components;
    if (*several_scans) {
        d->progress = (struct jpeg_progress_mgr){.progress_monitor = on_progress};
        info->progress = &d->progress;
    }
    const int32_t reduction = choose_reduction(task);
    info->scale_num = 1;
    info->scale_denom = (unsigned)reduction;
    info->out_color_space = JCS_EXT_RGBX; /* grey is replicated; four bytes per pixel suit the vector loops */
    d->jpeg->jpeg_start_decompress(info);
    if (d->own_entropy && !d->found_fault && !*several_scans) {
        sf_entropy_start(&d->entropy, info, sf_coding_of(d->jpeg, info), on_mcu);
    }
    return reduction;
}

static void decode(sf_decoder *d, sf_task *task) {
    struct jpeg_decompress_struct *info = &d->info;
    if (!task->box) {
        task->whole[2] = task->width;
        task->whole[3] = task->height;
        task->box = task->whole;
    }
    const struct sf_library *jpeg = d->jpeg;
    const sf_batch *batch = task->batch;
    const sf_loops *loops = d->loops;
    check_task(d, task);

    const uint8_t *const pixels = task->pixels;
    bool several_scans = false;
    const int32_t reduction = pixels ? 1 : start_image(d, task, &several_scans);
    const int32_t width = pixels ? task->width : (int32_t)info->output_width;
    const int32_t height = pixels ? task->height : (int32_t)info->output_height;
    const extent across = reduce(task->box[0], task->box[2], reduction, width);
    const extent down = reduce(task->box[1], task->box[3], reduction, height);
    sf_axis *horizontal = &d->horizontal, *vertical = &d->vertical;
    const sf_span columns = {
        .filter = batch->filter, .origin = across.offset, .length = across.length, .high = across.pixels,
        .resized = task->resized[0], .first = task->resized[2], .count = batch->width, .mirrored = task->mirrored,
    };
    const sf_span lines = {
        .filter = batch->filter, .origin = down.offset, .length = down.length, .high = down.pixels,
        .resized = task->resized[1], .first = task->resized[3], .count = batch->height,
    };
    need(d, sf_axis_set(horizontal, &columns, loops->packed) && sf_axis_set(vertical, &lines, false));

    /* Decode only the columns that carry weight; libjpeg widens them to the left to whole blocks. */
    const int32_t left = across.start + horizontal->low, right = across.start + horizontal->high;
    JDIMENSION column = left > MARGIN ? (JDIMENSION)(left - MARGIN) : 0;
    JDIMENSION decoded_width = (JDIMENSION)right + MARGIN;
    if (decoded_width > (JDIMENSION)width) decoded_width = (JDIMENSION)width;
    decoded_width -= column;
    if (!pixels) jpeg->jpeg_crop_scanline(info, &column, &decoded_width);

    /* And only the lines. Those above are skipped in whole row groups and even numbers, so that each read gives a whole
     * group, and an odd line is never taken for the first of the two that share a line of chroma. */
    const int32_t top = down.start + vertical->low, bottom = down.start + vertical->high;
    int32_t line = top;
    if (!pixels) {
        const int32_t factor = sf_coding_of(jpeg, info).max_v_samp_factor, group = factor * (factor % 2 ? 2 : 1);
        line = top > MARGIN ? (top - MARGIN) / group * group : 0;
        if (line > 0) jpeg->jpeg_skip_scanlines(info, (JDIMENSION)line);
    }

    /* The colour conversion of libjpeg-turbo uses non-temporal stores on 32-byte aligned rows, which push the row out
     * of the cache it is about to be read from: two thirds of the speed. 16 bytes off is enough to avoid it. */
    const size_t slack = 4 * ((size_t)horizontal->taps + 8);
    const size_t row_bytes = ((4 * (size_t)decoded_width + slack + 31) & ~(size_t)31);
    need(d, sf_reserve(&d->rows, 16 + ROWS_PER_READ * row_bytes));
    JSAMPROW rows[ROWS_PER_READ];
    for (int i = 0; i < ROWS_PER_READ; i++) {
        rows[i] = (uint8_t *)d->rows.data + 16 + i * row_bytes;
        memset(rows[i] + row_bytes - slack, 0, slack); /* read with zero weight */
    }
    const size_t shift = 4 * ((size_t)left - column);

    /* Rows that went through the horizontal pass live in a ring, in the layout of the caller's image, which leaves out
     * the fourth byte: less to do for the vertical pass, which then writes the image itself. */
    size_t ring_rows = 1; /* a power of two that holds a filter's length and what a read may add */
    while (ring_rows < (size_t)vertical->taps + ROWS_PER_READ) ring_rows *= 2;
    const size_t plane_bytes = SF_BLOCK * (((size_t)batch->width + SF_BLOCK - 1) / SF_BLOCK);
    const size_t made_bytes = 3 * plane_bytes;
    need(d, sf_reserve(&d->ring, made_bytes * ring_rows + 4 * plane_bytes));
    need(d, sf_reserve(&d->pointers, sizeof(uint8_t *) * (size_t)vertical->taps));
    uint8_t *const ring = d->ring.data, *const mixed = ring + made_bytes * ring_rows;
    const uint8_t **const taps = d->pointers.data;

    const size_t row_out = (batch->interleaved ? 3 : 1) * (size_t)batch->width, plane = row_out * (size_t)batch->height;
    for (int32_t y = 0; y < batch->height; y++) {
        const int32_t start = top + vertical->starts[y];
        const int32_t end = start + vertical->taps < bottom ? start + vertical->taps : bottom;
        while (line < end) {
            const int32_t wanted = bottom - line < ROWS_PER_READ ? bottom - line : ROWS_PER_READ;
            int32_t got = 1;
            if (pixels) {
                widen(pixels + 3 * ((size_t)line * (size_t)width + column), (int32_t)decoded_width, rows[0]);
            } else {
                got = (int32_t)jpeg->jpeg_read_scanlines(info, rows, (JDIMENSION)wanted);
            }
            if (got <= 0) FAIL(d, SF_CORRUPT, "not a decodable JPEG: it gave no more lines at %d", line);
            for (int32_t i = 0; i < got; i++, line++) {
                if (line < start) continue; /* of the margin, or between two outputs of an extreme reduction */
                uint8_t *const made = ring + made_bytes * ((size_t)line & (ring_rows - 1));
                loops->horizontal(horizontal, rows[i] + shift, mixed);
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
    if (!pixels && !several_scans && !has_end_marker(d)) on_source_empty(info);
}

/* setjmp is called in functions without locals of their own, so that none is indeterminate after a longjmp. */
static void try_to_decode(sf_decoder *d, const uint8_t *image, size_t size, sf_task *task, sf_problem *problem) {
    prepare(d, problem);
    if (!setjmp(d->escape)) {
        if (!task->pixels) {
            open_image(d, image, size, task->batch->max_pixels);
            task->width = (int32_t)d->info.image_width;
            task->height = (int32_t)d->info.image_height;
        }
        decode(d, task);
    }
    if (!task->pixels) close_image(d);
}

static void decode_guarded(sf_decoder *d, const uint8_t *image, size_t size, sf_task *task, sf_problem *problem) {
    d->found_fault = false;
    try_to_decode(d, image, size, task, problem);
    if (!d->found_fault) return;
    d->faults++;
    try_to_decode(d, image, size, task, problem); /* libjpeg-turbo says what it is, and what there is to see */
}

static void read_header_guarded(sf_decoder *d, const uint8_t *image, size_t size, sf_problem *problem) {
    prepare(d, problem);
    if (!setjmp(d->escape)) open_image(d, image, size, INT64_MAX);
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
    sf_release(&d->rows);
    sf_release(&d->ring);
    sf_release(&d->pointers);
    free(d);
}

const char *sf_decoder_about(const sf_decoder *d) { return d->about; }

int64_t sf_decoder_faults(const sf_decoder *d) { return d->faults; }

int32_t sf_decode(sf_decoder *d, const sf_batch *batch, sf_problem *problems) {
    const int32_t whole[4] = {batch->width, batch->height, 0, 0};
    int32_t found = 0;
    for (int32_t i = 0; i < batch->count; i++) {
        sf_task task = {
            .batch = batch,
            .box = batch->boxes ? batch->boxes + 4 * (size_t)i : NULL,
            .resized = batch->resized ? batch->resized + 4 * (size_t)i : whole,
            .expected = batch->expected ? batch->expected + 2 * (size_t)i : NULL,
            .mirrored = batch->flips[i] != 0,
            .out = batch->out + batch->image_stride * (size_t)i,
        };
        if (batch->decoded && batch->decoded[2 * (size_t)i] > 0) {
            task.pixels = batch->images[i];
            task.width = batch->decoded[2 * (size_t)i];
            task.height = batch->decoded[2 * (size_t)i + 1];
        }
        sf_problem *problem = &problems[found];
        decode_guarded(d, batch->images[i], batch->sizes[i], &task, problem);
        trim(&d->entropy.data);
        trim(&d->ring);
        trim(&d->horizontal.packed_memory);
        if (problem->status == SF_OK) continue;
        if (problem->status != SF_DAMAGED) memset(task.out, 0, 3 * (size_t)batch->width * batch->height);
        problem->index = i;
        found++;
    }
    return found;
}

int32_t sf_read_header(sf_decoder *d, const uint8_t *image, size_t size, sf_header *header, sf_problem *problem) {
    read_header_guarded(d, image, size, problem);
    if (problem->status == SF_DAMAGED) problem->status = SF_OK; /* a warning about the header concerns the decoder */
    if (problem->status == SF_OK) {
        header->width = (int32_t)d->info.image_width;
        header->height = (int32_t)d->info.image_height;
        header->components = d->info.num_components;
        header->progressive = sf_coding_of(d->jpeg, &d->info).progressive;
    }
    return problem->status;
}

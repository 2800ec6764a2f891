#include "decoder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* What a decoder of whole images takes of each pixel: four bytes, and two more of each component where coefficients
     * are kept from scan to scan. Not all of it is taken here; but which images are too large must not depend on it. */
    PIXEL_BYTES = 4,
    COEFFICIENT_BYTES = 2,
    /* How many images share a decompressor; see sf_open_image. */
    IMAGES_PER_DECOMPRESSOR = 16,
    /* What one image may leave behind for the next; a giant one returns its memory. */
    KEEP_BYTES = 32 << 20,
};

/* ---- problems ---- */

void sf_describe(sf_decoder *d, int status, const char *format, ...) {
    d->problem->status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->problem->message, SF_MESSAGE_BYTES, format, arguments);
    va_end(arguments);
}

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
    sf_describe(d, SF_DAMAGED, "%s", text);
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
void sf_open_image(sf_decoder *d, const uint8_t *image, size_t size) {
    struct jpeg_decompress_struct *info = &d->info;
    d->image = image;
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
void sf_close_image(sf_decoder *d) {
    if (--d->images_left > 0 && d->problem->status == SF_OK) {
        d->jpeg->jpeg_abort_decompress(&d->info);
    } else {
        d->jpeg->jpeg_destroy_decompress(&d->info);
        d->images_left = 0;
    }
}

void sf_prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem) {
    d->limits = limits;
    d->problem = problem;
    problem->status = SF_OK;
    problem->message[0] = 0;
    d->several_scans = false;
    d->found_fault = d->makes_pixels = false;
    d->info.err = d->jpeg->jpeg_std_error(&d->errors);
    d->info.client_data = d;
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
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

void sf_need(sf_decoder *d, bool got) {
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

void sf_check_end(sf_decoder *d) {
    if (!d->several_scans && !has_end_marker(d)) on_source_empty(&d->info);
}

void sf_give_scan_up(sf_decoder *d) {
    d->found_fault = true;
    FAIL(d, SF_CORRUPT, "a fault in its Huffman codes");
}

/* Decode an MCU in libjpeg-turbo's place. */
static boolean on_mcu(j_decompress_ptr info, JBLOCKROW *into) {
    sf_decoder *d = info->client_data;
    if (!sf_entropy_decode(&d->entropy, into)) sf_give_scan_up(d);
    return TRUE;
}

void sf_start_image(sf_decoder *d, int32_t reduction) {
    struct jpeg_decompress_struct *info = &d->info;
    check_coding(d);
    d->several_scans = has_several_scans(d);
    if (d->several_scans) {
        check_scans(d);
        d->progress = (struct jpeg_progress_mgr){.progress_monitor = on_progress};
        info->progress = &d->progress;
    }
    info->scale_num = 1;
    info->scale_denom = (unsigned)reduction;
    d->jpeg->jpeg_start_decompress(info);
    d->scan_started = d->own_entropy && d->way != SF_LIBRARY && !d->several_scans &&
                      sf_entropy_start(&d->entropy, info, sf_coding_of(d->jpeg, info), on_mcu);
}

bool sf_has_another_way(sf_decoder *d) {
    d->way = d->found_fault ? d->way + 1 : SF_WINDOW;
    d->faults += d->way == SF_LIBRARY;
    return d->found_fault;
}

/* Set the shape of the table that the one scan of the image at hand has. */
static void set_table(sf_decoder *d, sf_coding coding) {
    sf_seek_table *const table = &d->seek_table;
    const bool one = d->info.num_components == 1; /* then an MCU is a block, whatever the factors say */
    table->mcu_width = DCTSIZE * (one ? 1 : coding.max_h_samp_factor);
    table->mcu_height = DCTSIZE * (one ? 1 : coding.max_v_samp_factor);
    table->columns = ((int32_t)d->info.image_width + table->mcu_width - 1) / table->mcu_width;
    table->rows = ((int32_t)d->info.image_height + table->mcu_height - 1) / table->mcu_height;
    table->components = coding.comps_in_scan;
}

bool sf_narrow_scan(sf_decoder *d, const int32_t box[4]) {
    if (!d->scan_started) return false;
    const sf_coding coding = sf_coding_of(d->jpeg, &d->info);
    sf_seek_table *const table = &d->seek_table;
    set_table(d, coding);
    const sf_window window = {.left = box[0] / table->mcu_width, .right = (box[2] - 1) / table->mcu_width + 1,
                              .top = box[1] / table->mcu_height, .bottom = (box[3] - 1) / table->mcu_height + 1};
    const bool skips = window.top > 0 || window.left > 0 || window.right < table->columns;
    if (d->way == SF_WINDOW && d->may_seek && skips && !coding.restart_interval &&
        sf_seek_read(table, d->image, d->entropy.scan, d->image_end)) {
        sf_entropy_narrow(&d->entropy, table, window);
    } else {
        d->way = SF_WHOLE;
    }
    d->makes_pixels = d->own_pixels && sf_pixels_start(&d->pixels, &d->entropy, &d->info, coding, window);
    return d->makes_pixels;
}

size_t sf_write_seek_table(sf_decoder *d, uint8_t segment[SF_SEGMENT_BYTES]) {
    sf_seek_table *const table = &d->seek_table;
    if (has_several_scans(d)) return 0;
    sf_start_image(d, 1);
    const sf_coding coding = sf_coding_of(d->jpeg, &d->info);
    if (!d->scan_started || coding.restart_interval) return 0;
    set_table(d, coding);
    const size_t mcus = (size_t)table->columns * (size_t)table->rows;
    if (mcus / 4 > d->source.bytes_in_buffer) return 0; /* an MCU takes two bits or more */
    sf_need(d, sf_reserve(&table->places, sizeof(sf_place) * mcus));
    if (!sf_entropy_find_places(&d->entropy, mcus, table->places.data)) return 0;
    const uint8_t *const marker = d->source.next_input_byte;
    if (d->source.bytes_in_buffer < 2 || marker[1] != JPEG_EOI) return 0;
    table->scan_bytes = (size_t)(marker - d->entropy.scan);
    return sf_seek_write(table, table->places.data, segment);
}

int32_t sf_choose_reduction(const int32_t size[2], const int32_t resized[2], int32_t oversampling) {
    const int64_t least = oversampling;
    int32_t reduction = 1;
    while (least > 0 && reduction < 8 && size[0] >= 2 * reduction * least * resized[0] &&
           size[1] >= 2 * reduction * least * resized[1]) {
        reduction *= 2;
    }
    return reduction;
}

void sf_trim(sf_buffer *buffer) {
    if (buffer->bytes > KEEP_BYTES) sf_release(buffer);
}

sf_decoder *sf_decoder_new(const sf_library *library, int32_t fast) {
    sf_decoder *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->jpeg = library;
    d->loops = sf_loops_choose(fast != 0);
    sf_encoder_init(&d->encoder, fast != 0);
    d->own_entropy = fast && library->asks_for_mcus;
    d->own_pixels = d->own_entropy && sf_has_avx2();
    snprintf(d->about, sizeof d->about, "%s%s", d->loops->name, d->own_entropy ? ", Huffman decoding of its own" : "");
    return d;
}

void sf_decoder_free(sf_decoder *d) {
    if (!d) return;
    if (d->images_left) d->jpeg->jpeg_destroy_decompress(&d->info);
    sf_axis_release(&d->horizontal);
    sf_axis_release(&d->vertical);
    sf_release(&d->entropy.data);
    sf_release(&d->seek_table.places);
    sf_release(&d->pixels.memory);
    sf_release(&d->frame);
    sf_release(&d->rows);
    sf_release(&d->ring);
    sf_release(&d->pointers);
    sf_planes_release(&d->planes);
    sf_encoder_release(&d->encoder);
    free(d);
}

const char *sf_decoder_about(const sf_decoder *d) { return d->about; }

int64_t sf_decoder_faults(const sf_decoder *d) { return d->faults; }


#include "decoder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    /* The memory per pixel of a decoder of whole images: four bytes, and two more per component if coefficients are kept
     * between scans. This decoder takes less; but which images are too large must not depend on the decoder. */
    PIXEL_BYTES = 4,
    COEFFICIENT_BYTES = 2,
    /* How many images share a decompressor; see sf_open_image. */
    IMAGES_PER_DECOMPRESSOR = 16,
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
    /* Frames that libjpeg-turbo does not know, such as lossless ones, and features that it was built without. Compare
     * texts: the numbers of messages differ between versions. */
    if (strstr(text, "Unsupported JPEG process") || strstr(text, "not implemented")) FAIL(d, SF_UNSUPPORTED, "%s", text);
    FAIL(d, SF_CORRUPT, "not a decodable JPEG: %s", text);
}

static void on_message(j_common_ptr info, int level) {
    if (level >= 0 || info->err->num_warnings++ > 0) return; /* the first warning describes the damage */
    sf_decoder *d = info->client_data;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    sf_describe(d, SF_DAMAGED, "%s", text);
}

static void on_output(j_common_ptr info) { (void)info; /* do not print */ }

static int64_t pixels_of(const sf_decoder *d) { return (int64_t)d->shape.width * d->shape.height; }

static void on_progress(j_common_ptr info) {
    sf_decoder *d = info->client_data;
    const int64_t scans = d->info.input_scan_number;
    if (scans <= d->limits->scans && scans * pixels_of(d) <= d->limits->scan_pixels) return;
    FAIL(d, SF_TOO_LARGE, "has %d x %d pixels in %lld scans or more; the limits are %lld scans, and %lld pixels in all",
         d->shape.width, d->shape.height, (long long)scans, (long long)d->limits->scans,
         (long long)d->limits->scan_pixels);
}

static void fail_truncated(sf_decoder *d) { FAIL(d, SF_TRUNCATED, "the JPEG ends before its image does"); }

/* ---- source: the image's bytes in place ---- */

static void on_source_start(j_decompress_ptr info) { (void)info; }

static void on_source_end(j_decompress_ptr info) { (void)info; }

/* libjpeg's memory source inserts an end marker here and fills the rest with grey; but a truncated image is an error. */
static boolean on_source_empty(j_decompress_ptr info) {
    fail_truncated(info->client_data);
    return FALSE;
}

static void on_source_skip(j_decompress_ptr info, long bytes) {
    if (bytes <= 0) return;
    if ((size_t)bytes > info->src->bytes_in_buffer) on_source_empty(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}

/* ---- one image ---- */

/* Point the decompressor at the image, in the state of a new one.
 *
 * The decompressor is reused, because some versions query the processor's features for each new one, which costs 10 us
 * in a virtual machine. libjpeg keeps the tables of the previous image, and would decode a file without tables with
 * them. So the tables are dropped; they stay allocated (about 2 KB) as long as the decompressor, and lengthen a list that
 * every allocation walks: hence few images per decompressor. */
static void open_with_library(sf_decoder *d) {
    struct jpeg_decompress_struct *info = &d->info;
    d->is_own = false;
    info->err = d->library->jpeg_std_error(&d->errors);
    info->client_data = d;
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_output;
    if (d->images_left == 0) {
        sf_create_decompress(d->library, info);
        d->images_left = IMAGES_PER_DECOMPRESSOR;
    }
    for (int i = 0; i < NUM_QUANT_TBLS; i++) info->quant_tbl_ptrs[i] = NULL;
    for (int i = 0; i < NUM_HUFF_TBLS; i++) info->dc_huff_tbl_ptrs[i] = info->ac_huff_tbl_ptrs[i] = NULL;
    info->progress = NULL;
    d->source = (struct jpeg_source_mgr){
        .next_input_byte = d->image,
        .bytes_in_buffer = (size_t)(d->image_end - d->image),
        .init_source = on_source_start,
        .fill_input_buffer = on_source_empty,
        .skip_input_data = on_source_skip,
        .resync_to_restart = d->library->jpeg_resync_to_restart,
        .term_source = on_source_end,
    };
    info->src = &d->source;
    d->library->jpeg_read_header(info, TRUE);
    d->shape = sf_shape_of(d->library, info);
    d->is_progressive = sf_coding_of(d->library, info).progressive;
}

void sf_open_image(sf_decoder *d, const uint8_t *image, size_t size) {
    d->image = image;
    d->image_end = image + size;
    d->is_own = d->way != SF_BY_LIBRARY && d->decode_mode != SF_LIBRARY && sf_jpeg_read(&d->jpeg, image, size);
    if (d->is_own) d->shape = d->jpeg.shape;
    else open_with_library(d);
    if (pixels_of(d) > d->limits->pixels) {
        FAIL(d, SF_TOO_LARGE, "has %d x %d pixels; the limit is %lld", d->shape.width, d->shape.height,
             (long long)d->limits->pixels);
    }
}

/* After a problem the decompressor is not reused. */
void sf_close_image(sf_decoder *d) {
    if (d->is_own || d->images_left == 0) return;
    if (--d->images_left > 0 && d->problem->status == SF_OK) {
        d->library->jpeg_abort_decompress(&d->info);
    } else {
        d->library->jpeg_destroy_decompress(&d->info);
        d->images_left = 0;
    }
}

void sf_prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem) {
    d->limits = limits;
    d->problem = problem;
    problem->status = SF_OK;
    problem->message[0] = 0;
    d->several_scans = d->is_progressive = d->found_fault = false;
    d->is_own = true; /* libjpeg-turbo has not been called yet */
}

static bool is_neither_grey_nor_ycbcr(const sf_decoder *d) {
    return d->info.jpeg_color_space != JCS_YCbCr && d->info.jpeg_color_space != JCS_GRAYSCALE;
}

static void check_coding(sf_decoder *d) {
    const struct jpeg_decompress_struct *info = &d->info;
    if (info->jpeg_color_space != JCS_RGB && is_neither_grey_nor_ycbcr(d)) {
        FAIL(d, SF_UNSUPPORTED, "%d components that are neither grey nor RGB (CMYK?)", info->num_components);
    }
    if (info->data_precision != 8) FAIL(d, SF_UNSUPPORTED, "%d bits per component, not 8", info->data_precision);
    const sf_coding coding = sf_coding_of(d->library, info);
    if (coding.arithmetic) FAIL(d, SF_UNSUPPORTED, "arithmetic coding");
    /* A lossless scan has a predictor instead of the number of its first coefficient. */
    if (!coding.progressive && coding.Ss > 0 && coding.Se == 0) FAIL(d, SF_UNSUPPORTED, "lossless coding");
}

static void check_scans(sf_decoder *d) {
    const int64_t bytes = pixels_of(d) * (PIXEL_BYTES + COEFFICIENT_BYTES * d->shape.count);
    if (bytes <= d->limits->memory_bytes) return;
    FAIL(d, SF_TOO_LARGE, "has %d x %d pixels in several scans, which take %lld bytes to decode; the limit is %lld",
         d->shape.width, d->shape.height, (long long)bytes, (long long)d->limits->memory_bytes);
}

void sf_need(sf_decoder *d, bool got) {
    if (!got) FAIL(d, SF_NO_MEMORY, "not enough memory, or an image that needs too much of it");
}

/* Whether the part of a sequential image below the crop, which is not decoded, ends with an end marker: otherwise the file
 * is truncated. Inside entropy-coded data D9 never follows FF, so any end marker is a real one. */
static bool has_end_marker(const sf_decoder *d) {
    if (!d->is_own && sf_coding_of(d->library, &d->info).unread_marker == EOI) return true;
    const uint8_t *at = d->is_own ? d->entropy.marker : d->source.next_input_byte, *end = d->image_end;
    if (end - at >= 2 && end[-2] == 0xFF && end[-1] == EOI) return true;
    while (at < end && (at = memchr(at, 0xFF, (size_t)(end - at))) && ++at < end) {
        if (*at == EOI) return true;
    }
    return false;
}

void sf_check_end(sf_decoder *d) {
    if (!d->several_scans && !has_end_marker(d)) fail_truncated(d);
}

void sf_need_sound(sf_decoder *d, bool is_sound) {
    if (is_sound) return;
    d->found_fault = true;
    FAIL(d, SF_CORRUPT, "a fault in its Huffman codes");
}

static void set_scale(sf_decoder *d, int32_t reduction) {
    d->reduction = reduction;
    d->width = sf_divide_up(d->shape.width, reduction);
    d->height = sf_divide_up(d->shape.height, reduction);
}

static void start_library(sf_decoder *d) {
    struct jpeg_decompress_struct *info = &d->info;
    check_coding(d);
    d->several_scans = d->is_progressive || sf_coding_of(d->library, info).comps_in_scan < d->shape.count;
    if (d->several_scans) {
        check_scans(d);
        d->progress = (struct jpeg_progress_mgr){.progress_monitor = on_progress};
        info->progress = &d->progress;
    }
    info->scale_num = 1;
    info->scale_denom = (unsigned)d->reduction;
    d->library->jpeg_start_decompress(info);
}

void sf_start_lines(sf_decoder *d, int32_t reduction) {
    set_scale(d, reduction);
    if (d->is_own && sf_color_can(&d->jpeg, reduction)) return;
    if (d->is_own) open_with_library(d);
    d->info.out_color_space = JCS_EXT_RGBX; /* grey is replicated; four bytes per pixel suit the vector loops */
    start_library(d);
}

void sf_start_planes(sf_decoder *d, int32_t reduction) {
    set_scale(d, reduction);
    if (d->is_own ? d->jpeg.is_rgb : is_neither_grey_nor_ycbcr(d)) FAIL(d, SF_UNSUPPORTED, "neither grey nor YCbCr");
    if (d->is_own) {
        const sf_window all = {.right = d->jpeg.columns, .bottom = d->jpeg.rows};
        sf_need(d, sf_entropy_start(&d->entropy, &d->jpeg) &&
                       sf_scan_start(&d->scan, &d->entropy, &d->jpeg, reduction, all, reduction));
        return;
    }
    d->info.raw_data_out = TRUE;
    start_library(d);
}

bool sf_can_retry_slower(sf_decoder *d) {
    d->decode_mode = d->found_fault ? d->decode_mode + 1 : SF_WINDOW;
    d->faults += d->decode_mode == SF_LIBRARY;
    return d->found_fault;
}

sf_window sf_start_window(sf_decoder *d, const int32_t box[4]) {
    const sf_jpeg *const jpeg = &d->jpeg;
    const sf_window window = {.left = box[0] / jpeg->mcu_width, .right = (box[2] - 1) / jpeg->mcu_width + 1,
                              .top = box[1] / jpeg->mcu_height, .bottom = (box[3] - 1) / jpeg->mcu_height + 1};
    const bool skips = window.top > 0 || window.left > 0 || window.right < jpeg->columns;
    sf_need(d, sf_entropy_start(&d->entropy, jpeg));
    if (d->decode_mode == SF_WINDOW && d->may_seek && skips && !jpeg->interval && sf_seek_read(&d->seek_table, jpeg)) {
        sf_entropy_narrow(&d->entropy, &d->seek_table, window);
    } else {
        d->decode_mode = SF_WHOLE;
    }
    sf_need(d, sf_color_start(&d->color, &d->scan, &d->entropy, jpeg, d->reduction, window));
    return window;
}

void sf_own_line(sf_decoder *d, int32_t line, uint8_t *row) { sf_need_sound(d, sf_color_line(&d->color, line, row)); }

size_t sf_write_seek_table(sf_decoder *d, uint8_t segment[SF_SEGMENT_BYTES]) {
    sf_seek_table *const table = &d->seek_table;
    if (!d->is_own || d->jpeg.interval) return 0;
    sf_seek_set_shape(table, &d->jpeg);
    const size_t mcus = (size_t)table->columns * (size_t)table->rows;
    if (mcus / 4 > (size_t)(d->image_end - d->jpeg.scan)) return 0; /* an MCU takes two bits or more */
    sf_need(d, sf_entropy_start(&d->entropy, &d->jpeg) && sf_reserve(&table->places, sizeof(sf_place) * mcus));
    if (!sf_entropy_find_places(&d->entropy, mcus, table->places.data)) return 0;
    const uint8_t *const marker = d->entropy.marker;
    if (d->image_end - marker < 2 || marker[1] != EOI) return 0;
    table->scan_bytes = (size_t)(marker - d->jpeg.scan);
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

void sf_decoder_init(sf_decoder *d, const struct sf_library *library, enum sf_way way) {
    d->library = library;
    d->way = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? way : SF_BY_LIBRARY; /* the vector loops are little-endian */
    d->loops = sf_loops_choose(way == SF_FAST);
    sf_entropy_init(&d->entropy);
    d->scan.idct = sf_idct_choose(way == SF_FAST);
    sf_color_init(&d->color, way == SF_FAST);
}

void sf_decoder_trim(sf_decoder *d) {
    sf_trim(&d->entropy.data);
    sf_trim(&d->seek_table.places);
    sf_trim(&d->scan.memory);
}

void sf_decoder_release(sf_decoder *d) {
    if (d->images_left) d->library->jpeg_destroy_decompress(&d->info);
    sf_release(&d->entropy.data);
    sf_release(&d->seek_table.places);
    sf_release(&d->scan.memory);
    sf_release(&d->color.memory);
}

/* A decoder of one image after another: its problems, and who decodes it, the kernel itself or libjpeg-turbo.
 *
 * libjpeg-turbo, through its public interface, decodes the rest: several scans, arithmetic coding, rare samplings; and,
 * from its beginning, whatever a fault was found in. So what becomes of a damaged image is decided in one place.
 *
 * Every failure is a longjmp to the one setjmp of the image at hand. Nothing on the way owns memory: buffers
 * belong to the workspace, and libjpeg's pools are freed by sf_close_image.
 */
#ifndef SHARDFLOW_DECODER_H
#define SHARDFLOW_DECODER_H

#include <setjmp.h>

#include "color.h"
#include "entropy.h"
#include "jpeg.h"
#include "kernel.h"
#include "libjpeg.h"
#include "resample.h"
#include "scan.h"
#include "seek.h"

typedef struct {
    const struct sf_library *library;
    const sf_loops *loops;
    enum sf_way way;
    int64_t faults; /* images that libjpeg-turbo had to decode again */
    jmp_buf escape;
    /* The image at hand. */
    const sf_limits *limits;
    sf_problem *problem;
    const uint8_t *image, *image_end;
    enum { SF_WINDOW, SF_WHOLE, SF_LIBRARY } decode_mode; /* of its scan; see sf_can_retry_slower */
    bool found_fault; /* in its Huffman codes */
    bool is_own;      /* decoded by the kernel itself; `jpeg` describes it */
    bool may_seek;    /* whether its seek table may be used, if it has one */
    sf_shape shape;
    bool is_progressive;
    int32_t reduction, width, height; /* the scale, and the size of the whole image at that */
    /* The kernel's own decoding. */
    sf_jpeg jpeg;
    sf_seek_table seek_table;
    sf_entropy entropy;
    sf_scan scan;
    sf_color color;
    /* libjpeg-turbo's: one decompressor that is used again and again. */
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    int32_t images_left;     /* before `info` is made again; 0: there is none */
    bool several_scans;      /* whether the image comes in several */
} sf_decoder;

void sf_decoder_init(sf_decoder *decoder, const struct sf_library *library, enum sf_way way);
void sf_decoder_trim(sf_decoder *decoder);
void sf_decoder_release(sf_decoder *decoder);

/* Describe the problem of the image at hand. */
void sf_describe(sf_decoder *d, int status, const char *format, ...);

/* Give the image at hand up. */
#define FAIL(d, ...) (sf_describe(d, __VA_ARGS__), longjmp((d)->escape, 1))

void sf_need(sf_decoder *d, bool got); /* fail for want of memory, unless it was got */

/* The steps of an image, in their order. All but the first and the last are called after `setjmp(d->escape)`. */
void sf_prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem);
void sf_open_image(sf_decoder *d, const uint8_t *image, size_t size); /* reads the header */
/* ... then one of the next three, at the scale of 1 / reduction ... */
void sf_check_end(sf_decoder *d); /* the part that was not decoded: a file that is cut there must not pass for a whole one */
void sf_close_image(sf_decoder *d);

/* Begin to decode lines of RGBX. The kernel's own are asked for by sf_start_window and sf_own_line; others of `info`. */
void sf_start_lines(sf_decoder *d, int32_t reduction);

/* Begin to decode components as they are. The kernel's own are in `scan`, so many rows of MCUs as `reduction` at a time; others
 * are asked for as raw data of `info`. */
void sf_start_planes(sf_decoder *d, int32_t reduction);

/* Write the segment with the seek table of the image; returns its bytes, or 0 where it can have none. */
size_t sf_write_seek_table(sf_decoder *d, uint8_t segment[SF_SEGMENT_BYTES]);

/* Decode no more than the MCUs with a box of the whole image (left, top, right, bottom); returns which. */
sf_window sf_start_window(sf_decoder *d, const int32_t box[4]);

void sf_own_line(sf_decoder *d, int32_t line, uint8_t *row); /* from the first column of the window on */

void sf_need_sound(sf_decoder *d, bool is_sound); /* fail for a fault in the scan, unless it is sound */

/* After a try: whether there was a fault in the scan, and it can be tried again. First a window of the scan is decoded,
 * where there is a seek table; then all of it; and then libjpeg-turbo says what the fault is, and what there is to see. */
bool sf_can_retry_slower(sf_decoder *d);

/* The greatest of 1, 2, 4 and 8 by which `size` (width, height) can be reduced and still be `oversampling` times as large
 * as `resized`, each way; 1 where that is 0. */
int32_t sf_choose_reduction(const int32_t size[2], const int32_t resized[2], int32_t oversampling);

#endif

/* A decoder of one image after another, by the kernel itself or by libjpeg-turbo, and the problems of an image.
 *
 * libjpeg-turbo, through its public interface, decodes images of several scans and rare samplings; and it decodes every
 * image with a fault again from the start. So libjpeg-turbo alone decides how a damaged image is decoded.
 *
 * Every failure is a longjmp to the setjmp of the current image. No function on the way owns memory: buffers
 * belong to the workspace, and sf_close_image frees libjpeg's pools.
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
    /* The current image. */
    const sf_limits *limits;
    sf_problem *problem;
    const uint8_t *image, *image_end;
    enum { SF_WINDOW, SF_WHOLE, SF_LIBRARY } decode_mode; /* see sf_can_retry_slower */
    bool found_fault; /* in its Huffman codes */
    bool is_own;      /* decoded by the kernel itself; `jpeg` describes the image */
    bool may_seek;    /* whether its seek table may be used, if there is one */
    sf_shape shape;
    bool is_progressive;
    int32_t reduction, width, height; /* the scale, and the size of the whole image at that scale */
    /* The kernel's own decoding. */
    sf_jpeg jpeg;
    sf_seek_table seek_table;
    sf_entropy entropy;
    sf_scan scan;
    sf_color color;
    /* libjpeg-turbo's decoding: one decompressor, which is reused. */
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    int32_t images_left;     /* until `info` is recreated; 0: it does not exist */
    bool several_scans;      /* whether the image has several scans */
} sf_decoder;

void sf_decoder_init(sf_decoder *decoder, const struct sf_library *library, enum sf_way way);
void sf_decoder_trim(sf_decoder *decoder);
void sf_decoder_release(sf_decoder *decoder);

/* Describe the problem of the current image. */
void sf_describe(sf_decoder *d, int status, const char *format, ...);

/* Describe the problem of the current image and stop decoding it. */
#define FAIL(d, ...) (sf_describe(d, __VA_ARGS__), longjmp((d)->escape, 1))

void sf_need(sf_decoder *d, bool got); /* fail with SF_NO_MEMORY unless `got` */

/* The steps of an image, in their order. All but the first and the last are called after `setjmp(d->escape)`. */
void sf_prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem);
void sf_open_image(sf_decoder *d, const uint8_t *image, size_t size); /* reads the header */
/* ... then one of the next three, at the scale of 1 / reduction ... */
void sf_check_end(sf_decoder *d); /* fail if the file is cut in the part that was not decoded */
void sf_close_image(sf_decoder *d);

/* Begin to decode lines of RGBX. If the kernel decodes them, call sf_start_window and sf_own_line; otherwise use `info`. */
void sf_start_lines(sf_decoder *d, int32_t reduction);

/* Begin to decode components as stored. If the kernel decodes them, they are in `scan`, `reduction` rows of MCUs at a time;
 * otherwise they are raw data of `info`. */
void sf_start_planes(sf_decoder *d, int32_t reduction);

/* Write the segment with the seek table of the image; returns its bytes, or 0 if the image cannot have a table. */
size_t sf_write_seek_table(sf_decoder *d, uint8_t segment[SF_SEGMENT_BYTES]);

/* Decode only the MCUs of a box of the whole image (left, top, right, bottom); returns these MCUs. */
sf_window sf_start_window(sf_decoder *d, const int32_t box[4]);

void sf_own_line(sf_decoder *d, int32_t line, uint8_t *row); /* from the first column of the window on */

void sf_need_sound(sf_decoder *d, bool is_sound); /* fail with a fault in the scan unless `is_sound` */

/* After a try: whether the scan had a fault, and can be tried again. The first try decodes a window of the scan, if there is
 * a seek table; the next one the whole scan; in the last one libjpeg-turbo decodes it and describes the fault. */
bool sf_can_retry_slower(sf_decoder *d);

/* The greatest of 1, 2, 4 and 8 by which `size` (width, height) can be reduced and still be `oversampling` times as large
 * as `resized` on both axes; 1 if `oversampling` is 0. */
int32_t sf_choose_reduction(const int32_t size[2], const int32_t resized[2], int32_t oversampling);

#endif

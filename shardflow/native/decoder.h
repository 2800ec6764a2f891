/* A decoder: one libjpeg-turbo decompressor that is used again and again, and what goes wrong with an image.
 *
 * Every failure is a longjmp to the one setjmp of the image at hand. Nothing on the way holds memory of its own: buffers
 * belong to the decoder, and libjpeg's pools are freed by sf_close_image.
 */
#ifndef SHARDFLOW_DECODER_H
#define SHARDFLOW_DECODER_H

#include <setjmp.h>

#include "encoder.h"
#include "entropy.h"
#include "kernel.h"
#include "libjpeg.h"
#include "pixels.h"
#include "planes.h"
#include "resample.h"
#include "seek.h"

struct sf_decoder {
    const struct sf_library *jpeg;
    const sf_loops *loops;
    char about[64];
    bool own_entropy; /* whether scans are decoded by `entropy` where it can */
    enum { SF_WINDOW, SF_WHOLE, SF_LIBRARY } way; /* of decoding its scan; see sf_has_another_way */
    bool found_fault; /* of the image at hand, by `entropy` */
    int64_t faults;   /* images that libjpeg-turbo had to decode again */
    sf_entropy entropy;
    bool scan_started; /* by `entropy` */
    bool own_pixels;   /* whether lines are made by `pixels` where it can, */
    bool makes_pixels; /* as those of the image at hand */
    sf_pixels pixels;
    bool may_seek; /* whether the image at hand has a seek table that may be used, if it has one */
    sf_seek_table seek_table;
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    int32_t images_left; /* before `info` is made anew; 0: there is none */
    jmp_buf escape;
    bool several_scans;      /* whether the image at hand comes in several */
    const sf_limits *limits; /* of the image at hand */
    sf_problem *problem;
    const uint8_t *image, *image_end;
    sf_axis horizontal, vertical;
    sf_buffer frame, rows, ring, pointers;
    sf_planes planes;
    sf_encoder encoder;
};

/* Describe the problem of the image at hand. */
void sf_describe(sf_decoder *d, int status, const char *format, ...);

/* Give the image at hand up. */
#define FAIL(d, ...) (sf_describe(d, __VA_ARGS__), longjmp((d)->escape, 1))

void sf_need(sf_decoder *d, bool got); /* fail for want of memory, unless it was got */

/* The steps of an image, in their order. All but the first and the last are called behind `setjmp(d->escape)`. */
void sf_prepare(sf_decoder *d, const sf_limits *limits, sf_problem *problem);
void sf_open_image(sf_decoder *d, const uint8_t *image, size_t size); /* reads the header */
void sf_start_image(sf_decoder *d, int32_t reduction);                 /* to the scale of 1/reduction */
void sf_check_end(sf_decoder *d); /* whatever was not decoded: a file that was cut there must not pass for a whole */
void sf_close_image(sf_decoder *d);

/* Decode no more than a box of the whole image (left, top, right, bottom). True: `pixels` makes its lines, and libjpeg-turbo
 * is not to be asked for them. */
bool sf_narrow_scan(sf_decoder *d, const int32_t box[4]);

void sf_give_scan_up(sf_decoder *d); /* for a fault in it */

/* After a try: whether there was a fault in the scan, and it can be tried again. First a window of the scan is decoded,
 * where there is a seek table; then all of it; and then libjpeg-turbo says what the fault is, and what there is to see. */
bool sf_has_another_way(sf_decoder *d);

/* Write the segment with the seek table of an image that was opened, in place of starting it; returns its bytes, or 0 where
 * it can have none. */
size_t sf_write_seek_table(sf_decoder *d, uint8_t segment[SF_SEGMENT_BYTES]);

/* The greatest of 1, 2, 4 and 8 by which `size` (width, height) can be reduced and still be `oversampling` times as large
 * as `resized`, each way; 1 where that is 0. */
int32_t sf_choose_reduction(const int32_t size[2], const int32_t resized[2], int32_t oversampling);

void sf_trim(sf_buffer *buffer); /* give the memory of a giant image back */

#endif

/* From the blocks of a colour JPEG to lines of RGBX, in libjpeg-turbo's place and with its values bit by bit: the inverse
 * transform, "fancy" upsampling of the chroma, and the conversion of colours, in one go per line and for the MCUs of a crop.
 *
 * For the codings that photographs have, YCbCr in 4:4:4, 4:2:2 and 4:2:0 at full scale, on processors with AVX2; all
 * else is libjpeg-turbo's, which the tests compare with this. A libjpeg-turbo built without its vector code has other values
 * where coefficients are so large that 16 bits overflow, as no encoder makes them.
 */
#ifndef SHARDFLOW_PIXELS_H
#define SHARDFLOW_PIXELS_H

#include <stdbool.h>
#include <stdint.h>

#include "entropy.h"
#include "libjpeg.h"
#include "resample.h"

/* Where a block of the MCUs goes: in the first column and slot to `out`, and in others so many bytes further each. */
typedef struct {
    const int16_t *factors;
    uint8_t *out;
    size_t stride, column, slot;
} sf_target;

typedef struct {
    sf_entropy *entropy;
    sf_window window;         /* the MCUs whose pixels are wanted */
    int32_t columns;          /* of MCUs in the image */
    int32_t across, down;     /* luma pixels per pixel of chroma: 1 or 2 */
    int32_t chroma_width, chroma_height; /* of the image */
    int32_t next_row;         /* of MCUs, to be decoded; two are kept */
    size_t strides[3];
    uint8_t *planes[3];
    sf_target targets[6];
    int16_t *sums[2];         /* a line of each chroma plane, weighted */
    sf_buffer memory;
    _Alignas(16) int16_t factors[3][DCTSIZE2];
    _Alignas(16) JBLOCK blocks[6];
} sf_pixels;

/* Begin with the scan that `entropy` has started. False: it is libjpeg-turbo's. */
bool sf_pixels_start(sf_pixels *pixels, sf_entropy *entropy, const struct jpeg_decompress_struct *info, sf_coding coding,
                     sf_window window);

/* Write a line of the image from the first column of the window on, in whole groups of 32 pixels. Lines are asked for in
 * ascending order. False: there is a fault in the scan. */
bool sf_pixels_line(sf_pixels *pixels, int32_t line, uint8_t *row);

#endif

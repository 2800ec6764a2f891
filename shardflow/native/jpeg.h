/* A JPEG as its header describes it (ITU-T T.81, annex B), if the kernel decodes the JPEG itself: 8 bits, Huffman coding, one
 * sequential scan of one or three components.
 *
 * sf_jpeg_read refuses other headers, and headers of which libjpeg-turbo would warn: libjpeg-turbo decodes such an image, and
 * describes its problem.
 */
#ifndef SHARDFLOW_JPEG_H
#define SHARDFLOW_JPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DCTSIZE = 8,
    DCTSIZE2 = 64,
    NUM_QUANT_TBLS = 4,
    NUM_HUFF_TBLS = 4,
    MAX_COMPS_IN_SCAN = 4,
    MAX_BLOCKS_IN_MCU = 10,
    MAX_DIMENSION = 65500, /* of libjpeg-turbo */
    PLANES = 3,            /* Y, Cb, Cr */
};

enum sf_marker {
    SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DNL = 0xDC,
    DRI = 0xDD, APP0 = 0xE0, APP9 = 0xE9, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE,
};

/* The places of a block's coefficients in coding order (figure A.6). */
#define SF_ZIGZAG                                                                                                \
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, \
    21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53,   \
    60, 61, 54, 47, 55, 62, 63

typedef int16_t sf_coefficients[DCTSIZE2]; /* of a block, by row and column */

static inline int32_t sf_divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

/* A Huffman table in the file; NULL: the file lacks it. */
typedef struct {
    const uint8_t *counts;  /* [16] of codes, by length */
    const uint8_t *symbols; /* [count] */
    int count;
} sf_code_lengths;

/* The properties of an image that every decoder needs. */
typedef struct {
    int32_t width, height;
    int count;                  /* of components */
    int h[PLANES], v[PLANES];   /* their sampling factors, across and down, relative to the greatest ones */
    int max_h, max_v;
} sf_shape;

typedef struct {
    sf_shape shape;
    bool is_rgb;                  /* else YCbCr, or grey */
    const uint8_t *steps[PLANES]; /* of quantisation, by component, in zigzag order */
    bool wide_steps[PLANES];      /* whether steps have two bytes each */
    const sf_code_lengths *dc[PLANES], *ac[PLANES]; /* by component */
    sf_code_lengths codes[2][NUM_HUFF_TBLS];
    unsigned interval;            /* MCUs between two restart markers; 0: there are none */
    int mcu_h[PLANES], mcu_v[PLANES]; /* blocks of each component in an MCU */
    int32_t mcu_width, mcu_height; /* in pixels */
    int32_t columns, rows;         /* of MCUs */
    const uint8_t *image, *scan, *end; /* the entropy-coded data begin at `scan`; the file ends at `end` */
    const uint8_t *seek_table;     /* a segment that may be a seek table, or NULL */
} sf_jpeg;

/* False: libjpeg-turbo must decode the image. */
bool sf_jpeg_read(sf_jpeg *jpeg, const uint8_t *image, size_t size);

/* How many samples a block of a component has on each axis, at the scale of 1 / reduction: as in libjpeg-turbo, blocks of
 * subsampled components are decoded to more samples. */
int sf_samples_of_block(const sf_shape *shape, int component, int32_t reduction);

#endif

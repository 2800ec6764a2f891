/* The inverse transform of a JPEG's blocks: libjpeg's "islow", and its transforms to 4 x 4, 2 x 2 and 1 x 1 samples.
 *
 * On every processor the arithmetic is that of libjpeg-turbo's vector code for x86: 16 bits that wrap around or saturate,
 * and 32-bit sums. libjpeg-turbo's loops in C and for other processors give other values if 16 bits overflow, which no
 * encoder causes.
 */
#ifndef SHARDFLOW_IDCT_H
#define SHARDFLOW_IDCT_H

#include <stdbool.h>

#include "jpeg.h"

/* The target of a block of each MCU: `samples` x `samples` bytes, at `out` for the first column and slot; each further column
 * is `column` bytes away, and each further slot `slot` bytes. */
typedef struct {
    const int16_t *steps; /* of quantisation, by row and column; aligned to 16 bytes, like blocks */
    int samples;
    uint8_t *out;
    size_t stride, column, slot;
} sf_target;

/* Transform the `count` blocks of an MCU, or of two neighbours, from a column on, and set the blocks to zeros. */
typedef void sf_idct(const sf_target *targets, int count, int32_t column, int32_t slot, int mcus, sf_coefficients *blocks);

extern sf_idct sf_idct_avx2, sf_idct_generic;

sf_idct *sf_idct_choose(bool simd);

#endif

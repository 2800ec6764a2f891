/* The inverse transform of a JPEG's blocks: libjpeg's "islow", and its transforms to 4 x 4, 2 x 2 and 1 x 1 samples.
 *
 * In the arithmetic of libjpeg-turbo's vector code for x86, 16 bits that wrap around or saturate and sums of 32, whatever
 * the processor is: libjpeg-turbo's loops in C and for other processors have other values where 16 bits overflow, as no
 * encoder makes them.
 */
#ifndef SHARDFLOW_IDCT_H
#define SHARDFLOW_IDCT_H

#include <stdbool.h>

#include "jpeg.h"

/* What becomes of a block of each MCU: `samples` x `samples`, in the first column and slot at `out`, and in others so many
 * bytes further each. */
typedef struct {
    const int16_t *steps; /* of quantisation, by row and column; aligned as blocks are, to 16 bytes */
    int samples;
    uint8_t *out;
    size_t stride, column, slot;
} sf_target;

/* Transform the blocks of an MCU, or of two neighbours, and leave zeros in them: `count` of each MCU, from a column on. */
typedef void sf_idct(const sf_target *targets, int count, int32_t column, int32_t slot, int mcus, sf_coefficients *blocks);

extern sf_idct sf_idct_avx2, sf_idct_generic;

sf_idct *sf_idct_choose(bool simd);

#endif

/* The forward transform of a JPEG's blocks, libjpeg's "islow", and the quantisation of the coefficients: the vector loops
 * and plain C give the same integers as libjpeg. */
#ifndef SHARDFLOW_FDCT_H
#define SHARDFLOW_FDCT_H

#include <stdbool.h>
#include <stdint.h>

#include "jpeg.h"

/* Coefficients by row and column. */
typedef struct {
    _Alignas(16) sf_coefficients values;
    uint64_t set; /* bit i: value i is not 0 */
} sf_block;

/* A quantiser, in a form that divides vectors by its steps: add `half`, multiply by `reciprocal` and by `shift`, and take the
 * upper 16 bits of each product. */
typedef struct {
    _Alignas(16) uint16_t half[DCTSIZE2], reciprocal[DCTSIZE2], shift[DCTSIZE2];
} sf_quantiser;

/* Steps are 1 to 255. */
void sf_quantiser_set(sf_quantiser *quantiser, const uint8_t steps[DCTSIZE2]);

/* Transform and quantise `count` neighbouring blocks in eight rows of samples. An even number of blocks may be read and
 * written. */
typedef void sf_fdct(const uint8_t *const rows[DCTSIZE], int32_t count, const sf_quantiser *quantiser, sf_block *blocks);

sf_fdct *sf_fdct_choose(bool simd);

#endif

/* The forward transform of a JPEG's blocks, libjpeg's "islow", and the quantisation of what comes of it: the same integers
 * that libjpeg gives, in vectors as in plain C. */
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

/* A quantiser as the steps by which a vector is divided: added `half`, it is the higher half of the product with
 * `reciprocal`, and of the product of that with `shift`. */
typedef struct {
    _Alignas(16) uint16_t half[DCTSIZE2], reciprocal[DCTSIZE2], shift[DCTSIZE2];
} sf_quantiser;

/* Of steps from 1 to 255. */
void sf_quantiser_set(sf_quantiser *quantiser, const uint8_t steps[DCTSIZE2]);

/* Transform and quantise `count` neighbouring blocks in eight rows of samples. An even number of them is read,
 * and written. */
typedef void sf_fdct(const uint8_t *const rows[DCTSIZE], int32_t count, const sf_quantiser *quantiser, sf_block *blocks);

sf_fdct *sf_fdct_choose(bool simd);

#endif

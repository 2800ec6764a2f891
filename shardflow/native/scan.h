/* The samples of a scan that the kernel decodes itself: the components' planes, one row of MCUs at a time. */
#ifndef SHARDFLOW_SCAN_H
#define SHARDFLOW_SCAN_H

#include "entropy.h"
#include "idct.h"
#include "jpeg.h"
#include "resample.h"

enum { SF_LINE = 32 }; /* samples per read: a plane has this many bytes or more of spare room after it */

/* The samples of a component: a ring with one row of MCUs per slot. */
typedef struct {
    int32_t width, height; /* of the image */
    int32_t columns, lines; /* of an MCU */
    size_t stride;
    uint8_t *rows;
} sf_samples;

typedef struct {
    sf_entropy *entropy;
    sf_idct *idct;
    sf_window window; /* the MCUs whose samples are made */
    int32_t columns, rows; /* of MCUs in the image */
    int32_t slots, next_row;
    int count; /* of blocks in an MCU */
    sf_target targets[MAX_BLOCKS_IN_MCU];
    sf_samples samples[PLANES];
    sf_buffer memory;
    _Alignas(16) int16_t steps[PLANES][DCTSIZE2];
    _Alignas(16) sf_coefficients blocks[2 * MAX_BLOCKS_IN_MCU]; /* of two MCUs, which are transformed together */
} sf_scan;

/* Begin the scan that `entropy` has started, at the scale of 1 / reduction. False: not enough memory. */
bool sf_scan_start(sf_scan *scan, sf_entropy *entropy, const sf_jpeg *jpeg, int32_t reduction, sf_window window,
                   int32_t slots);

/* Decode the next row of MCUs into its slot. False: there is a fault in the scan. */
bool sf_scan_next(sf_scan *scan);

#endif

/* From the samples of a scan to lines of RGBX, with libjpeg-turbo's values bit by bit: "fancy" upsampling of the chroma, and
 * the conversion of colours, in one go per line. For the samplings that photographs have, 4:4:4, 4:2:2 and 4:2:0, and for
 * grey; all else is libjpeg-turbo's. */
#ifndef SHARDFLOW_COLOR_H
#define SHARDFLOW_COLOR_H

#include "scan.h"

typedef struct {
    sf_scan *scan;
    bool simd;
    int32_t across, down; /* pixels per sample of chroma: 1 or 2 */
    int32_t together;     /* rows of MCUs that are decoded at once, as libjpeg-turbo does: damage is found alike */
    int16_t *sums[2];     /* a line of each chroma plane, weighted, */
    int16_t *wide[2];     /* and as wide as that of luma, from -128 on */
    sf_buffer memory;
} sf_color;

bool sf_color_can(const sf_jpeg *jpeg, int32_t reduction);

/* Begin with the window of a scan. False: not enough memory. */
bool sf_color_start(sf_color *color, sf_scan *scan, sf_entropy *entropy, const sf_jpeg *jpeg, int32_t reduction,
                    sf_window window);

/* Write a line of the image from the first column of the window on, in whole groups of 32 pixels. Lines are asked for in
 * ascending order. False: there is a fault in the scan. */
bool sf_color_line(sf_color *color, int32_t line, uint8_t *row);

#endif

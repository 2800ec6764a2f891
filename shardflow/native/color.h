/* From the samples of a scan to lines of RGBX, bit-identical to libjpeg-turbo: "fancy" chroma upsampling and colour
 * conversion in one pass per line. For the samplings of photographs, 4:4:4, 4:2:2 and 4:2:0, and for grey; libjpeg-turbo
 * decodes all other samplings. */
#ifndef SHARDFLOW_COLOR_H
#define SHARDFLOW_COLOR_H

#include "scan.h"

/* Lines in groups of 32 pixels. */
typedef struct {
    void (*add_lines)(const uint8_t *near, const uint8_t *far, size_t count, int16_t *out);
    void (*write_444)(const uint8_t *luma, const uint8_t *const chroma[2], size_t count, uint8_t *row);
    void (*write_422)(const uint8_t *luma, int16_t *const sums[2], size_t count, uint8_t *row);
    void (*write_420)(const uint8_t *luma, int16_t *const sums[2], size_t count, uint8_t *row);
} sf_color_loops;
extern const sf_color_loops sf_color_loops_avx2, sf_color_loops_generic;

typedef struct {
    sf_scan *scan;
    const sf_color_loops *loops;
    int32_t across, down; /* pixels per sample of chroma: 1 or 2 */
    int32_t together;     /* rows of MCUs decoded at once, as in libjpeg-turbo, so that both find the same damage */
    int16_t *sums[2];     /* a weighted line of each chroma plane */
    sf_buffer memory;
} sf_color;

void sf_color_init(sf_color *color, bool simd);

bool sf_color_can(const sf_jpeg *jpeg, int32_t reduction);

/* Begin with the window of a scan. False: not enough memory. */
bool sf_color_start(sf_color *color, sf_scan *scan, sf_entropy *entropy, const sf_jpeg *jpeg, int32_t reduction,
                    sf_window window);

/* Write a line of the image from the first column of the window on, in whole groups of 32 pixels. Lines must be requested
 * in ascending order. False: there is a fault in the scan. */
bool sf_color_line(sf_color *color, int32_t line, uint8_t *row);

#endif

/* Planes: a JPEG decoded and resized in its own colours, each component by itself.
 *
 * On the way to a JPEG, chroma need be neither upsampled nor converted: it goes from its own resolution to the target's.
 * Where a component has fewer samples than there are pixels, a sample lies in the middle of the pixels that it stands for,
 * as libjpeg takes it (ITU-T T.871, section 7).
 */
#ifndef SHARDFLOW_PLANES_H
#define SHARDFLOW_PLANES_H

#include "kernel.h"
#include "libjpeg.h"
#include "resample.h"

enum { SF_PLANES = 3 }; /* Y, Cb, Cr */

/* The samples of a component. Behind those of a row its last one is repeated up to the end of a block of 8. */
typedef struct {
    int32_t width, height;
    size_t row_bytes; /* from one row to the next */
    uint8_t *rows;
} sf_plane;

static inline int32_t sf_divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

/* One of them on its way. Axis 0 is across and axis 1 down the image as it is stored. */
typedef struct {
    sf_component source;
    int32_t made[2]; /* samples that are wanted, along each axis */
    sf_axis axes[2];
    size_t row_bytes, passed_bytes; /* of a decoded row, and of a row that went through the horizontal pass */
    sf_buffer rows, passed, stored, upright;
} sf_channel;

typedef struct {
    sf_channel channels[SF_PLANES];
    sf_buffer woven, pointers;
} sf_planes;

/* Decode the image that was opened, and return the planes of what it is transcoded to, the upright ones. Those of chroma are
 * neutral where it is grey. They are valid until the next image. */
void sf_planes_make(sf_decoder *d, const sf_transcoding *transcoding, sf_plane planes[SF_PLANES]);

void sf_planes_trim(sf_planes *planes);
void sf_planes_release(sf_planes *planes);

#endif

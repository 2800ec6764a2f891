/* Planes: a JPEG decoded and resized in its own colours, each component separately.
 *
 * On the way to a JPEG, chroma need be neither upsampled nor converted: it goes from its own resolution to the target's.
 * Where a component has fewer samples than there are pixels, a sample is in the middle of the pixels that it stands for,
 * as libjpeg takes it (ITU-T T.871, section 7).
 */
#ifndef SHARDFLOW_PLANES_H
#define SHARDFLOW_PLANES_H

#include "decoder.h"
#include "plane.h"

/* A plane in progress. Axis 0 is across and axis 1 down the stored image. */
typedef struct {
    int32_t made[2]; /* samples that are wanted, along each axis */
    sf_axis axes[2];
    int lines;              /* of a row of MCUs */
    size_t row_bytes;       /* of a decoded row, */
    size_t passed_bytes;    /* and of a row that went through the horizontal pass */
    uint8_t *decoded;       /* rows, the kernel's own or those of `rows` */
    sf_buffer rows, passed, stored, upright;
} sf_channel;

typedef struct {
    sf_channel channels[PLANES];
    sf_buffer woven, pointers;
} sf_planes;

/* Decode the image that was opened, and return the planes of what it is transcoded to, the upright ones. Those of chroma are
 * neutral where it is grey. They are valid until the next image. */
void sf_planes_make(sf_planes *p, sf_decoder *d, const sf_transcoding *transcoding, sf_plane planes[PLANES]);

void sf_planes_trim(sf_planes *planes);
void sf_planes_release(sf_planes *planes);

#endif

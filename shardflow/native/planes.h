/* Planes: a JPEG decoded and resized in its own colours, each component separately.
 *
 * Transcoding needs no upsampling or conversion of chroma, which is resized from its resolution to the target's. If a
 * component has fewer samples than there are pixels, a sample is in the centre of its pixels, as in libjpeg (ITU-T T.871,
 * section 7).
 */
#ifndef SHARDFLOW_PLANES_H
#define SHARDFLOW_PLANES_H

#include "decoder.h"
#include "encoder.h"

/* A plane in progress. Axis 0 is across and axis 1 down the stored image. */
typedef struct {
    int32_t made[2]; /* number of samples to make, along each axis */
    sf_axis axes[2];
    int lines;              /* of a row of MCUs */
    size_t row_bytes;       /* of a decoded row */
    size_t passed_bytes;    /* of a row after the horizontal pass */
    uint8_t *decoded;       /* rows, of the kernel's scan or in `rows` */
    sf_buffer rows, passed, stored, upright;
} sf_channel;

typedef struct {
    sf_channel channels[PLANES];
    sf_buffer woven, pointers;
} sf_planes;

/* Decode the opened image, and return the resized upright planes to encode. The chroma planes of a grey image are neutral.
 * The planes are valid until the next image. */
void sf_planes_make(sf_planes *p, sf_decoder *d, const sf_transcoding *transcoding, sf_plane planes[PLANES]);

void sf_planes_trim(sf_planes *planes);
void sf_planes_release(sf_planes *planes);

/* A decoder's image, resized in its own colours and encoded again. */
typedef struct {
    sf_planes planes;
    sf_encoder encoder;
} sf_transcoder;

#endif

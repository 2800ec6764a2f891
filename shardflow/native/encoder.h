/* An encoder: planes to a baseline JPEG, by the same libjpeg-turbo that decodes. */
#ifndef SHARDFLOW_ENCODER_H
#define SHARDFLOW_ENCODER_H

#include "planes.h"

typedef struct {
    struct jpeg_compress_struct info;
    struct jpeg_destination_mgr destination;
    bool exists; /* whether `info` was created */
    sf_buffer bytes;
} sf_encoder;

/* Encode planes as YCbCr, with sampling = (across, down) samples of luma to one of chroma, and return the number of bytes in
 * `d->encoder.bytes`. */
size_t sf_encode(sf_decoder *d, const sf_plane planes[SF_PLANES], int32_t quality, const int32_t sampling[2]);

/* After an image that failed, and in the end: the next one gets another compressor. */
void sf_encoder_reset(sf_decoder *d);

#endif

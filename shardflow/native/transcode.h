/* A transcoder: a decoder's image, resized in its own colours and encoded again. */
#ifndef SHARDFLOW_TRANSCODE_H
#define SHARDFLOW_TRANSCODE_H

#include "decoder.h"
#include "encoder.h"
#include "planes.h"

typedef struct {
    sf_planes planes;
    sf_encoder encoder;
} sf_transcoder;

#endif

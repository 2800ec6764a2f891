/* The working memory of one thread. */
#ifndef SHARDFLOW_WORKSPACE_H
#define SHARDFLOW_WORKSPACE_H

#include "decoder.h"
#include "planes.h"

struct sf_workspace {
    sf_decoder decoder;
    char about[64];
    sf_axis horizontal, vertical; /* for crops */
    sf_buffer file, frame, rows, ring, pointers;
    sf_transcoder transcoder;
};

#endif

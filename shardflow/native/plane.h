#ifndef SHARDFLOW_PLANE_H
#define SHARDFLOW_PLANE_H

#include <stddef.h>
#include <stdint.h>

/* The samples of a component. The last sample of a row is repeated up to the end of its block of 8. */
typedef struct {
    int32_t width, height;
    size_t row_bytes; /* from one row to the next */
    uint8_t *rows;
} sf_plane;

#endif

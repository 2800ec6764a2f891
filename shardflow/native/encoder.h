/* An encoder: planes to a baseline JPEG with the standard tables, byte for byte libjpeg's, and to its seek table, because the
 * encoder knows where each MCU begins. */
#ifndef SHARDFLOW_ENCODER_H
#define SHARDFLOW_ENCODER_H

#include "fdct.h"
#include "seek.h"
#include "standard_tables.h"

/* The samples of a component. The last sample of a row is repeated up to the end of its block of 8. */
typedef struct {
    int32_t width, height;
    size_t row_bytes; /* from one row to the next */
    uint8_t *rows;
} sf_plane;

/* The bits of a symbol, code and value: the highest 5 bits are their number, and the lowest bits are the code with zeros for
 * the value. */
typedef uint32_t sf_symbol;

typedef struct {
    sf_fdct *fdct;
    sf_symbol dc[SF_TABLES][16], ac[SF_TABLES][256]; /* by zeros before the value, and bits of the value */
    uint64_t zigzag[DCTSIZE][256]; /* the places in zigzag order of the values of a row, by which values are set */
    sf_quantiser quantisers[SF_TABLES];
    sf_seek_table table;
    sf_buffer blocks; /* of a row of MCUs */
    sf_buffer data; /* of the scan, before zero stuffing */
    sf_buffer image;
} sf_encoder;

void sf_encoder_init(sf_encoder *encoder, bool simd);
void sf_encoder_trim(sf_encoder *encoder);
void sf_encoder_release(sf_encoder *encoder);

/* Encode planes as YCbCr, with `sampling` (across, down) samples of luma per sample of chroma; if `with_table`, with the seek
 * table that the JPEG can have. Returns the number of bytes, 0 if there is not enough memory. `image` is set to the bytes,
 * which belong to the encoder and are valid until its next use. */
size_t sf_encode(sf_encoder *encoder, const sf_plane planes[PLANES], int32_t quality, const int32_t sampling[2],
                 bool with_table, const uint8_t **image);

#endif

/* An encoder: planes to a baseline JPEG with the standard tables, byte for byte libjpeg's, and to its seek table: where each
 * MCU begins is known when it is written. */
#ifndef SHARDFLOW_ENCODER_H
#define SHARDFLOW_ENCODER_H

#include "fdct.h"
#include "plane.h"
#include "seek.h"
#include "standard_tables.h"

/* The bits that are written for a symbol, code and value: the highest 5 bits say how many, the lowest are those of the code,
 * with zeros for the value. */
typedef uint32_t sf_symbol;

typedef struct {
    sf_fdct *fdct;
    sf_symbol dc[SF_TABLES][16], ac[SF_TABLES][256]; /* by zeros before the value, and bits of the value */
    uint64_t zigzag[DCTSIZE][256]; /* which places in zigzag order the values of a row have, by which of them are set */
    sf_quantiser quantisers[SF_TABLES];
    sf_seek_table table;
    sf_buffer blocks; /* of a row of MCUs */
    sf_buffer data; /* of the scan, before zeros are stuffed into them */
    sf_buffer image;
} sf_encoder;

void sf_encoder_init(sf_encoder *encoder, bool simd);
void sf_encoder_trim(sf_encoder *encoder);
void sf_encoder_release(sf_encoder *encoder);

/* Encode planes as YCbCr, with sampling = (across, down) samples of luma to one of chroma, with the seek table that the JPEG
 * can have if `with_table`. Returns the bytes, of which `image` is where they begin: in the encoder, until it is used again.
 * 0: not enough memory. */
size_t sf_encode(sf_encoder *encoder, const sf_plane planes[PLANES], int32_t quality, const int32_t sampling[2],
                 bool with_table, const uint8_t **image);

#endif

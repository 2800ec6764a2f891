/* Huffman decoding of baseline JPEGs, in half of libjpeg-turbo's time.
 *
 * Only data without faults is decoded: at the first fault the caller has libjpeg-turbo decode the image from the start, so
 * that libjpeg-turbo alone decides how a damaged image is decoded.
 */
#ifndef SHARDFLOW_ENTROPY_H
#define SHARDFLOW_ENTROPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jpeg.h"
#include "resample.h"
#include "seek.h"

enum { SF_CODE_BITS = 9, SF_PAIR_BITS = 11 };

/* The codes of one table. Codes of AC coefficients are looked up in `pairs` first, by the next bits: the entry has two whole
 * coefficients, or one, or only the number of bits of one with a long value. Larger tables hold more coefficients, but do
 * not fit the L1 cache. */
typedef struct {
    uint64_t pairs[1 << SF_PAIR_BITS];
    uint32_t symbols[1 << SF_CODE_BITS]; /* by the next bits; 0: a longer code, or an invalid one */
    uint32_t ends[17];                   /* by length: the first 16 bits that no code up to that length begins */
    int32_t places[17];                  /* by length: from a code to its place */
    uint32_t placed[256];                /* symbols by place, without the bits of their codes */
    uint8_t counts[16], values[256];     /* the table they were made from, and its number of codes; -1: not made */
    int count;
} sf_codes;

typedef struct {
    const uint8_t *next; /* the bytes after `bits`, of which the highest `count` bits count */
    uint64_t bits;
    unsigned count;
} sf_reader;

/* The MCUs that are needed; right and bottom are excluded. */
typedef struct {
    int32_t left, right, top, bottom;
} sf_window;

typedef struct {
    sf_codes dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS]; /* made again if an image's tables differ from the previous image's */
    struct {
        const sf_codes *dc, *ac;
        int component;
    } blocks[MAX_BLOCKS_IN_MCU];
    int count; /* of blocks in an MCU */
    const uint8_t *marker, *end;    /* the marker after the data, and the end of the file */
    unsigned interval, left;        /* MCUs between two restart markers (0: no markers), and until the next one */
    int restarts;
    uint32_t predictions[MAX_COMPS_IN_SCAN];
    sf_buffer data; /* up to that marker, without stuffed zeros, then zeros */
    size_t size;
    sf_reader reader; /* of the data */
    const uint8_t *scan; /* in the file */
    /* With a seek table, `data` holds the stretches of a row that the window touches. */
    const sf_seek_table *table;
    sf_window window;
    int32_t row, column;      /* of the MCU that is requested next */
    int32_t next_column;      /* of the reader's MCU, in the same row */
    int32_t checked_column;   /* before this column the reader is compared */
    const sf_place *checked;  /* with this place, */
    uint64_t checked_bit;     /* which is this bit of the data */
} sf_entropy;

void sf_entropy_init(sf_entropy *entropy);

/* Begin the scan of a JPEG. False: not enough memory. */
bool sf_entropy_start(sf_entropy *entropy, const sf_jpeg *jpeg);

/* Decode only the MCUs of the window, in a scan that has been started. */
void sf_entropy_narrow(sf_entropy *entropy, const sf_seek_table *table, sf_window window);

/* Decode the next MCU into consecutive blocks of zeros, or skip it with NULL. False: there is a fault, or the
 * seek table does not belong to the scan. */
bool sf_entropy_decode(sf_entropy *entropy, sf_coefficients *into);

/* Skip a whole scan of `count` MCUs without restart markers, and find where each MCU begins. False: there is a fault. */
bool sf_entropy_find_places(sf_entropy *entropy, size_t count, sf_place *places);

#endif

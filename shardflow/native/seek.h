/* Seek tables: where stretches of MCUs begin in the entropy-coded data of a baseline JPEG, and the DC predictors there.
 *
 * A table is an APP9 segment before the scan, which other readers skip; docs/format.md specifies it. With the table, a crop
 * is decoded without the blocks around it.
 *
 * A table is untrusted: it may be damaged, or belong to another scan. Reading checks its sum, and that its places ascend
 * within the scan. In each row, the entropy decoder compares the place and the predictors that it reaches with an entry. So
 * a wrong entry only costs the time to decode the image without the table.
 */
#ifndef SHARDFLOW_SEEK_H
#define SHARDFLOW_SEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jpeg.h"
#include "resample.h"

enum { SF_SEGMENT_BYTES = 2 + 65535 }; /* the most bytes of a segment, including its marker */

/* Where an MCU begins. */
typedef struct {
    uint64_t bit;                      /* of the scan in the file, including stuffed zeros */
    uint16_t predictions[MAX_COMPS_IN_SCAN]; /* of the DC coefficients, modulo 65,536 */
} sf_place;

typedef struct {
    int32_t columns, rows, components; /* of the scan: MCUs, and the components of an MCU */
    int32_t stretch;                   /* MCUs from one place to the next in a row; the last stretch ends with the row */
    int32_t per_row;                   /* stretches */
    size_t scan_bytes;                 /* up to the marker after the scan */
    sf_buffer places;                  /* sf_place [rows * per_row + 1]; the last one is the end of the scan */
} sf_seek_table;

/* Whether an APP9 segment begins like a seek table. */
bool sf_seek_is_table(const uint8_t *contents, size_t bytes);

/* Read the table in a JPEG's header. False: the scan has no valid table. */
bool sf_seek_read(sf_seek_table *table, const sf_jpeg *jpeg);

/* Set the shape of a table to that of a JPEG's scan. */
void sf_seek_set_shape(sf_seek_table *table, const sf_jpeg *jpeg);

/* Write the segment of a table, given the place of every MCU; returns the number of bytes. Sets the stretches to the
 * shortest for which the segment takes at most 1 % of the scan; returns 0 if even stretches of whole rows take more. */
size_t sf_seek_write(sf_seek_table *table, const sf_place *mcus, uint8_t segment[SF_SEGMENT_BYTES]);

#endif

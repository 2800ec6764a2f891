#include "seek.h"

#include <string.h>

enum {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    SHARE = 1, /* so that tiny images have tables */
#else
    SHARE = 100, /* a table takes at most 1 / SHARE of its scan's bytes */
#endif
    /* Stretches begin in the first 3/5 of a row, where the left edge of a large crop is; the last one ends with the row. */
    NUMERATOR = 3,
    DENOMINATOR = 5,
    SUM_BYTES = 4,
};
static const uint8_t NAME[] = {'s', 'f', '-', 's', 'e', 'e', 'k', 0, 1}; /* and the version */

static size_t ceil_of(size_t count, size_t by) { return (count + by - 1) / by; }

/* RFC 1950. */
static uint32_t adler32(const uint8_t *bytes, size_t count) {
    uint32_t a = 1, b = 0;
    while (count > 0) {
        const size_t part = count < 5552 ? count : 5552; /* this many cannot overflow */
        for (size_t i = 0; i < part; i++) b += a += bytes[i];
        a %= 65521;
        b %= 65521;
        bytes += part;
        count -= part;
    }
    return b << 16 | a;
}

/* ---- numbers, the most significant bits first ---- */

static uint64_t get(const uint8_t *bytes, size_t bit, unsigned count) {
    uint64_t value;
    memcpy(&value, bytes + bit / 8, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value << bit % 8 >> 1 >> (63 - count);
}

/* The bytes must be zero before. */
static void put(uint8_t *bytes, size_t bit, unsigned count, uint64_t value) {
    for (unsigned i = 0; i < count; i++, bit++) bytes[bit / 8] |= (value >> (count - 1 - i) & 1) << (7 - bit % 8);
}

static uint32_t signed_of(uint64_t value, unsigned count) {
    return count && value >> (count - 1) ? (uint32_t)value - (1u << count) : (uint32_t)value;
}

static unsigned bits_of(uint64_t value) { return value ? 64 - (unsigned)__builtin_clzll(value) : 0; }

static unsigned bits_of_signed(int16_t value) { return value ? 1 + bits_of((uint64_t)(value < 0 ? ~value : value)) : 0; }

/* ---- a segment: marker and length (2 bytes each), NAME, columns (2), rows (2), stretch (2), per_row (2), scan_bytes (4),
 * components (1), the width in bits of a step and of the difference of each component (1 each), the entries, and a sum (4) ---- */

typedef struct {
    size_t columns, rows, stretch, per_row, scan_bytes, components, widths, entries, sum, bytes; /* where they are */
} layout;

static layout layout_of(int32_t components, size_t entries_bits) {
    layout at = {.columns = 4 + sizeof NAME};
    at.rows = at.columns + 2;
    at.stretch = at.rows + 2;
    at.per_row = at.stretch + 2;
    at.scan_bytes = at.per_row + 2;
    at.components = at.scan_bytes + 4;
    at.widths = at.components + 1;
    at.entries = at.widths + 1 + (size_t)components;
    at.sum = at.entries + ceil_of(entries_bits, 8);
    at.bytes = at.sum + SUM_BYTES;
    return at;
}

static bool read_places(sf_seek_table *table, const uint8_t *entries, const uint8_t *widths, size_t count) {
    if (!sf_reserve(&table->places, sizeof(sf_place) * (count + 1))) return false;
    sf_place *const places = table->places.data;
    const uint64_t scan_bits = 8 * (uint64_t)table->scan_bytes;
    sf_place place = {0};
    size_t bit = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            const uint64_t by = get(entries, bit, widths[0]);
            bit += widths[0];
            place.bit += by;
            if (by == 0 || place.bit >= scan_bits) return false;
            for (int32_t c = 0; c < table->components; c++) {
                place.predictions[c] += (uint16_t)signed_of(get(entries, bit, widths[1 + c]), widths[1 + c]);
                bit += widths[1 + c];
            }
        }
        places[i] = place;
    }
    places[count] = (sf_place){.bit = scan_bits};
    return true;
}

bool sf_seek_is_table(const uint8_t *contents, size_t bytes) {
    return bytes >= sizeof NAME && !memcmp(contents, NAME, sizeof NAME);
}

void sf_seek_set_shape(sf_seek_table *table, const sf_jpeg *jpeg) {
    table->columns = jpeg->columns;
    table->rows = jpeg->rows;
    table->components = jpeg->shape.count;
}

/* The header of the scan, of ten bytes or more, follows a table, so `get` does not read beyond it. */
bool sf_seek_read(sf_seek_table *table, const sf_jpeg *jpeg) {
    const uint8_t *const segment = jpeg->seek_table;
    if (!segment) return false;
    sf_seek_set_shape(table, jpeg);
    const size_t bytes = 2 + get(segment + 2, 0, 16);
    layout at = layout_of(table->components, 0);
    if (bytes < at.bytes || segment[at.components] != table->components) return false;
    if ((int32_t)get(segment + at.columns, 0, 16) != table->columns) return false;
    if ((int32_t)get(segment + at.rows, 0, 16) != table->rows) return false;
    table->stretch = (int32_t)get(segment + at.stretch, 0, 16);
    table->per_row = (int32_t)get(segment + at.per_row, 0, 16);
    table->scan_bytes = get(segment + at.scan_bytes, 0, 32);
    const uint8_t *const widths = segment + at.widths;
    size_t entry_bits = widths[0];
    for (int32_t c = 0; c < table->components; c++) {
        if (widths[1 + c] > 16) return false;
        entry_bits += widths[1 + c];
    }
    if (widths[0] > 32 || table->stretch < 1 || table->per_row < 1) return false;
    if ((int64_t)(table->per_row - 1) * table->stretch >= table->columns) return false;
    const size_t count = (size_t)table->rows * (size_t)table->per_row;
    if (count > 1 && widths[0] == 0) return false; /* from here on the segment's length bounds the count */
    at = layout_of(table->components, (count - 1) * entry_bits);
    if (bytes != at.bytes || get(segment + at.sum, 0, 32) != adler32(segment + 4, at.sum - 4)) return false;
    if ((size_t)(jpeg->end - jpeg->scan) < table->scan_bytes + 2) return false;
    const uint8_t *const marker = jpeg->scan + table->scan_bytes;
    if (marker[0] != 0xFF || marker[1] != EOI) return false;
    return read_places(table, segment + at.entries, widths, count);
}

/* ---- writing ---- */

/* The place where a stretch begins. */
static const sf_place *place_of(const sf_seek_table *table, const sf_place *mcus, size_t number) {
    const size_t per_row = (size_t)table->per_row;
    return mcus + number / per_row * (size_t)table->columns + number % per_row * (size_t)table->stretch;
}

static int16_t difference_of(const sf_place *before, const sf_place *place, int32_t component) {
    return (int16_t)(place->predictions[component] - before->predictions[component]);
}

/* The bits of the columns of an entry, as in the file; 0 for missing components. */
typedef struct {
    uint8_t bit, predictions[MAX_COMPS_IN_SCAN];
} widths;

static widths measure(const sf_seek_table *table, const sf_place *mcus, size_t count) {
    const sf_place *before = mcus;
    widths w = {0};
    for (size_t i = 1; i < count; i++) {
        const sf_place *const place = place_of(table, mcus, i);
        const unsigned bits = bits_of(place->bit - before->bit);
        if (bits > w.bit) w.bit = (uint8_t)bits;
        for (int32_t c = 0; c < table->components; c++) {
            const unsigned width = bits_of_signed(difference_of(before, place, c));
            if (width > w.predictions[c]) w.predictions[c] = (uint8_t)width;
        }
        before = place;
    }
    return w;
}

static void put_entries(const sf_seek_table *table, const sf_place *mcus, size_t count, const widths *w,
                        uint8_t *entries) {
    const sf_place *before = mcus;
    size_t bit = 0;
    for (size_t i = 1; i < count; i++) {
        const sf_place *const place = place_of(table, mcus, i);
        put(entries, bit, w->bit, place->bit - before->bit);
        bit += w->bit;
        for (int32_t c = 0; c < table->components; c++) {
            put(entries, bit, w->predictions[c], (uint16_t)difference_of(before, place, c));
            bit += w->predictions[c];
        }
        before = place;
    }
}

size_t sf_seek_write(sf_seek_table *table, const sf_place *mcus, uint8_t segment[SF_SEGMENT_BYTES]) {
    const size_t most = table->scan_bytes / SHARE;
    if (table->scan_bytes > UINT32_MAX) return 0;
    for (table->stretch = 1; table->stretch <= table->columns; table->stretch++) {
        table->per_row = (int32_t)ceil_of(NUMERATOR * (size_t)table->columns, DENOMINATOR * (size_t)table->stretch);
        const size_t count = (size_t)table->rows * (size_t)table->per_row;
        const widths w = measure(table, mcus, count);
        size_t entry_bits = w.bit;
        for (int c = 0; c < MAX_COMPS_IN_SCAN; c++) entry_bits += w.predictions[c];
        const layout at = layout_of(table->components, (count - 1) * entry_bits);
        if (at.bytes > most || at.bytes > SF_SEGMENT_BYTES) continue;
        memset(segment, 0, at.bytes);
        put(segment, 0, 16, 0xFF00 | APP9);
        put(segment, 16, 16, at.bytes - 2);
        memcpy(segment + 4, NAME, sizeof NAME);
        put(segment + at.columns, 0, 16, (uint64_t)table->columns);
        put(segment + at.rows, 0, 16, (uint64_t)table->rows);
        put(segment + at.stretch, 0, 16, (uint64_t)table->stretch);
        put(segment + at.per_row, 0, 16, (uint64_t)table->per_row);
        put(segment + at.scan_bytes, 0, 32, table->scan_bytes);
        segment[at.components] = (uint8_t)table->components;
        memcpy(segment + at.widths, &w, 1 + (size_t)table->components);
        put_entries(table, mcus, count, &w, segment + at.entries);
        put(segment + at.sum, 0, 32, adler32(segment + 4, at.sum - 4));
        return at.bytes;
    }
    return 0;
}

#include "encoder.h"

#include <string.h>

enum {
    LENGTH_SHIFT = 27, /* of a symbol */
    CODE_BITS = (1 << LENGTH_SHIFT) - 1,
    SKIP = 0xF0, /* the symbol of 16 zeros */
    BLOCK_END = 0,
    MAX_MCU_BLOCKS = 6,
    MCU_BYTES = MAX_MCU_BLOCKS * DCTSIZE2 * 26 / 8, /* a value with its code takes at most 26 bits */
    WORD_BYTES = 8, /* per write */
    FIRST_BYTES = 1 << 16,
};

static const uint8_t ZIGZAG[DCTSIZE2] = {SF_ZIGZAG};

/* ---- the header: T.81, annex B ---- */

enum { HEADER_BYTES = 609, SCAN_HEADER_BYTES = 14, FRONT_BYTES = HEADER_BYTES + SF_SEGMENT_BYTES + SCAN_HEADER_BYTES };
enum { END_BYTES = 2 };

static uint8_t *put_bytes(uint8_t *to, const void *bytes, size_t count) {
    memcpy(to, bytes, count);
    return to + count;
}

static uint8_t *put_marker(uint8_t *to, uint8_t marker, int length) {
    const uint8_t bytes[4] = {0xFF, marker, (uint8_t)(length >> 8), (uint8_t)length};
    return put_bytes(to, bytes, 4);
}

static uint8_t *put_codes(uint8_t *to, uint8_t table, const sf_standard_codes *codes) {
    int count = 0;
    for (int i = 0; i < 16; i++) count += codes->counts[i];
    to = put_marker(to, DHT, 2 + 1 + 16 + count);
    *to++ = table;
    to = put_bytes(to, codes->counts, sizeof codes->counts);
    return put_bytes(to, codes->symbols, (size_t)count);
}

/* Set the quantisers of a quality, on libjpeg's scale, and write everything before the header of the scan. */
static void write_header(sf_encoder *e, const sf_plane *luma, int32_t quality, const int32_t sampling[2], uint8_t *to) {
    static const uint8_t jfif[] = {'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0}; /* version 1.1, square pixels */
    const int percent = quality < 50 ? 5000 / quality : 200 - 2 * quality;
    *to++ = 0xFF;
    *to++ = SOI;
    to = put_marker(to, APP0, 2 + (int)sizeof jfif);
    to = put_bytes(to, jfif, sizeof jfif);
    for (uint8_t table = 0; table < SF_TABLES; table++) {
        uint8_t steps[DCTSIZE2];
        for (int i = 0; i < DCTSIZE2; i++) {
            const int step = (STANDARD_STEPS[table][i] * percent + 50) / 100;
            steps[i] = (uint8_t)(step < 1 ? 1 : step > 255 ? 255 : step);
        }
        sf_quantiser_set(&e->quantisers[table], steps);
        to = put_marker(to, DQT, 2 + 1 + DCTSIZE2);
        *to++ = table;
        for (int k = 0; k < DCTSIZE2; k++) *to++ = steps[ZIGZAG[k]];
    }
    const uint8_t frame[] = {
        8, (uint8_t)(luma->height >> 8), (uint8_t)luma->height, (uint8_t)(luma->width >> 8), (uint8_t)luma->width, PLANES,
        1, (uint8_t)(sampling[0] << 4 | sampling[1]), SF_LUMA, 2, 0x11, SF_CHROMA, 3, 0x11, SF_CHROMA,
    };
    to = put_marker(to, SOF0, 2 + (int)sizeof frame);
    to = put_bytes(to, frame, sizeof frame);
    for (uint8_t table = 0; table < SF_TABLES; table++) {
        to = put_codes(to, table, &STANDARD_DC[table]);
        to = put_codes(to, 0x10 | table, &STANDARD_AC[table]);
    }
}

static void write_scan_header(uint8_t *to) {
    static const uint8_t scan[] = {PLANES, 1, 0x00, 2, 0x11, 3, 0x11, 0, DCTSIZE2 - 1, 0};
    to = put_marker(to, SOS, 2 + (int)sizeof scan);
    put_bytes(to, scan, sizeof scan);
}

/* ---- bits ---- */

typedef struct {
    uint8_t *next;
    uint64_t bits; /* the lowest `count` of these, at most seven, are still to be written */
    unsigned count;
    const uint8_t *end; /* of the buffer */
} writer;

/* Write 1 to 32 bits. Every call writes a word, and the next word begins at the first incomplete byte: a branch that waits
 * for a whole word would be unpredictable. */
static ALWAYS_INLINE void put(writer *w, uint32_t bits, unsigned length) {
    w->bits = w->bits << length | bits;
    w->count += length;
    uint64_t word = w->bits << (64 - w->count);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(w->next, &word, sizeof word);
    w->next += w->count / 8;
    w->count %= 8;
}

static ALWAYS_INLINE void put_symbol(writer *w, sf_symbol symbol, uint32_t value) {
    put(w, (symbol & CODE_BITS) | value, symbol >> LENGTH_SHIFT);
}

/* ---- blocks ---- */

/* Write the symbol of a value's size, and the bits of the value; for a negative value, the bits of value - 1. */
static ALWAYS_INLINE void put_value(writer *w, const sf_symbol *symbols, int32_t value) {
    const int32_t sign = value >> 31;
    const unsigned size = 32 - (unsigned)__builtin_clz((uint32_t)((value ^ sign) - sign) << 1 | 1) - 1;
    put_symbol(w, symbols[size], (uint32_t)(value + sign) & ((1u << size) - 1));
}

static ALWAYS_INLINE void put_block(writer *w, const sf_encoder *e, int table, const sf_block *block, int32_t predicted) {
    const sf_symbol *const ac = e->ac[table];
    put_value(w, e->dc[table], block->values[0] - predicted);
    uint64_t places = 0;
    for (int row = 0; row < DCTSIZE; row++) places |= e->zigzag[row][block->set >> DCTSIZE * row & 255];
    unsigned last = 0;
    for (places &= ~(uint64_t)1; places; places &= places - 1) {
        const unsigned place = (unsigned)__builtin_ctzll(places);
        unsigned zeros = place - last - 1;
        last = place;
        for (; RARE(zeros >= 16); zeros -= 16) put_symbol(w, ac[SKIP], 0);
        put_value(w, ac + 16 * zeros, block->values[ZIGZAG[place]]);
    }
    if (last < DCTSIZE2 - 1) put_symbol(w, ac[BLOCK_END], 0);
}

/* Write a block that fills up the last MCU of a row or column: with the DC value of the block before, and no AC values. */
static void put_filler(writer *w, const sf_encoder *e) {
    put_symbol(w, e->dc[SF_LUMA][0], 0);
    put_symbol(w, e->ac[SF_LUMA][BLOCK_END], 0);
}

/* ---- the scan ---- */

typedef struct {
    const sf_plane *planes;
    int32_t across, down;   /* blocks of luma in an MCU */
    int32_t luma_columns;   /* blocks of the image */
    int32_t columns, rows;  /* MCUs */
    size_t row_blocks;      /* capacity for the blocks of a row of luma */
    uint16_t predicted[MAX_COMPS_IN_SCAN];
} scan;

static sf_block *blocks_of(const sf_encoder *e, const scan *s, int plane, int32_t line) {
    return (sf_block *)e->blocks.data + s->row_blocks * (size_t)(plane ? s->down + plane - 1 : line);
}

/* Transform the blocks of a row of MCUs. The last line of a plane is repeated up to the end of its blocks. */
static void transform_row(sf_encoder *e, const scan *s, int32_t row) {
    for (int i = 0; i < PLANES; i++) {
        const sf_plane *const plane = &s->planes[i];
        const int32_t down = i ? 1 : s->down, last = plane->height - 1;
        for (int32_t line = 0; line < down; line++) {
            const int32_t first = DCTSIZE * (row * down + line);
            const uint8_t *rows[DCTSIZE];
            if (first > last) break;
            for (int32_t y = 0; y < DCTSIZE; y++) {
                rows[y] = plane->rows + plane->row_bytes * (size_t)(first + y < last ? first + y : last);
            }
            e->fdct(rows, i ? s->columns : s->luma_columns, &e->quantisers[i ? SF_CHROMA : SF_LUMA],
                    blocks_of(e, s, i, line));
        }
    }
}

static ALWAYS_INLINE void put_mcu(writer *w, const sf_encoder *e, scan *s, int32_t row, int32_t column) {
    const int32_t luma_lines = sf_divide_up(s->planes[0].height, DCTSIZE) - row * s->down;
    for (int32_t line = 0; line < s->down; line++) {
        for (int32_t x = column * s->across; x < (column + 1) * s->across; x++) {
            if (line >= luma_lines || x >= s->luma_columns) {
                put_filler(w, e);
                continue;
            }
            const sf_block *const block = blocks_of(e, s, 0, line) + x;
            put_block(w, e, SF_LUMA, block, (int16_t)s->predicted[0]);
            s->predicted[0] = (uint16_t)block->values[0];
        }
    }
    for (int i = 1; i < PLANES; i++) {
        const sf_block *const block = blocks_of(e, s, i, 0) + column;
        put_block(w, e, SF_CHROMA, block, (int16_t)s->predicted[i]);
        s->predicted[i] = (uint16_t)block->values[0];
    }
}

static bool reserve_mcu(sf_buffer *data, writer *w) {
    if (w->end - w->next >= MCU_BYTES + WORD_BYTES) return true;
    const size_t kept = (size_t)(w->next - (uint8_t *)data->data), room = 2 * (size_t)(w->end - (uint8_t *)data->data);
    if (!sf_extend(data, kept, room)) return false;
    w->next = (uint8_t *)data->data + kept;
    w->end = (uint8_t *)data->data + room;
    return true;
}

/* Write the data of the scan, and where each MCU begins. Returns the number of bytes; 0: not enough memory. */
static size_t write_data(sf_encoder *e, scan *s, sf_place *places) {
    const size_t room = e->data.bytes < FIRST_BYTES ? FIRST_BYTES : e->data.bytes;
    if (!sf_reserve(&e->data, room)) return 0;
    writer w = {.next = e->data.data, .end = (uint8_t *)e->data.data + room};
    for (int32_t row = 0; row < s->rows; row++) {
        transform_row(e, s, row);
        for (int32_t column = 0; column < s->columns; column++, places++) {
            if (!reserve_mcu(&e->data, &w)) return 0;
            places->bit = 8 * (uint64_t)(w.next - (uint8_t *)e->data.data) + w.count;
            memcpy(places->predictions, s->predicted, sizeof s->predicted);
            put_mcu(&w, e, s, row, column);
        }
    }
    if (w.count) put(&w, (1u << (8 - w.count)) - 1, 8 - w.count);
    return (size_t)(w.next - (uint8_t *)e->data.data);
}

/* Copy data with a zero after each FF, and move the places accordingly; returns the end of the copy. */
static uint8_t *stuff(const uint8_t *data, size_t bytes, sf_place *places, size_t count, uint8_t *to) {
    const sf_place *const last = places + count;
    for (size_t at = 0, zeros = 0; at < bytes; zeros++) {
        const uint8_t *const found = memchr(data + at, 0xFF, bytes - at);
        const size_t end = found ? (size_t)(found - data) + 1 : bytes;
        to = put_bytes(to, data + at, end - at);
        if (found) *to++ = 0;
        for (; places < last && places->bit / 8 < end; places++) places->bit += 8 * zeros;
        at = end;
    }
    return to;
}

static size_t count_stuffed(const uint8_t *data, size_t bytes) {
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += data[i] == 0xFF;
    return count;
}

/* ---- public ---- */

/* The scan is written before the header that precedes it: the header has the seek table, which depends on the scan. */
size_t sf_encode(sf_encoder *e, const sf_plane planes[PLANES], int32_t quality, const int32_t sampling[2],
                 bool with_table, const uint8_t **image) {
    sf_seek_table *const table = &e->table;
    scan s = {
        .planes = planes, .across = sampling[0], .down = sampling[1],
        .luma_columns = sf_divide_up(planes[0].width, DCTSIZE),
        .columns = sf_divide_up(planes[0].width, DCTSIZE * sampling[0]),
        .rows = sf_divide_up(planes[0].height, DCTSIZE * sampling[1]),
    };
    const size_t mcus = (size_t)s.columns * (size_t)s.rows;
    s.row_blocks = ((size_t)s.luma_columns + 1) & ~(size_t)1;
    if (!sf_reserve(&e->blocks, sizeof(sf_block) * s.row_blocks * (size_t)(s.down + 2))) return 0;
    if (!sf_reserve(&table->places, sizeof(sf_place) * mcus)) return 0;
    uint8_t header[HEADER_BYTES];
    write_header(e, &planes[0], quality, sampling, header);
    const size_t bytes = write_data(e, &s, table->places.data), stuffed = count_stuffed(e->data.data, bytes);
    if (!bytes || !sf_reserve(&e->image, FRONT_BYTES + bytes + stuffed + END_BYTES)) return 0;
    uint8_t *const segment = e->image.data, *const scan = segment + FRONT_BYTES;
    uint8_t *const end = stuff(e->data.data, bytes, table->places.data, mcus, scan);
    end[0] = 0xFF;
    end[1] = EOI;
    table->columns = s.columns;
    table->rows = s.rows;
    table->components = PLANES;
    table->scan_bytes = bytes + stuffed;
    const size_t segment_bytes = with_table ? sf_seek_write(table, table->places.data, segment) : 0;
    uint8_t *const scan_header = scan - SCAN_HEADER_BYTES, *const first = scan_header - segment_bytes - HEADER_BYTES;
    memmove(scan_header - segment_bytes, segment, segment_bytes);
    put_bytes(first, header, HEADER_BYTES);
    write_scan_header(scan_header);
    *image = first;
    return (size_t)(end + END_BYTES - first);
}

static void set_symbols(const sf_standard_codes *codes, sf_symbol *symbols) {
    uint32_t code = 0;
    for (unsigned length = 1, at = 0; length <= 16; length++, code <<= 1) {
        for (int i = 0; i < codes->counts[length - 1]; i++, code++) {
            const uint8_t symbol = codes->symbols[at++];
            const unsigned size = symbol & 15;
            symbols[symbol] = (length + size) << LENGTH_SHIFT | code << size;
        }
    }
}

void sf_encoder_init(sf_encoder *e, bool simd) {
    e->fdct = sf_fdct_choose(simd);
    for (int table = 0; table < SF_TABLES; table++) {
        set_symbols(&STANDARD_DC[table], e->dc[table]);
        set_symbols(&STANDARD_AC[table], e->ac[table]);
    }
    for (unsigned place = 0; place < DCTSIZE2; place++) {
        const unsigned row = ZIGZAG[place] / DCTSIZE, column = ZIGZAG[place] % DCTSIZE;
        for (unsigned set = 0; set < 256; set++) e->zigzag[row][set] |= (uint64_t)(set >> column & 1) << place;
    }
}

static void each_buffer(sf_encoder *e, void (*work)(sf_buffer *)) {
    work(&e->blocks);
    work(&e->data);
    work(&e->image);
    work(&e->table.places);
}

void sf_encoder_trim(sf_encoder *e) { each_buffer(e, sf_trim); }

void sf_encoder_release(sf_encoder *e) { each_buffer(e, sf_release); }

#include "entropy.h"

#include <string.h>

enum {
    END = 64, /* how far an early end of a block moves the index of the next coefficient */
    /* The most bytes of an MCU: it is read whole before the end of the data is checked. A block has up to 64 symbols, each
     * with a code of up to 16 bits and a value of up to 15. */
    SYMBOL_BITS = 16 + 15,
    BLOCK_BYTES = 64 * SYMBOL_BITS / 8,
    REFILL_BYTES = 8, /* read at once, */
    AHEAD_BYTES = 7,  /* of which so many before they are needed */
    ZERO_BYTES = MAX_BLOCKS_IN_MCU * BLOCK_BYTES + AHEAD_BYTES + REFILL_BYTES,
    /* How many pairs 56 bits hold in addition to the bits of the next lookup: whole pairs, and pairs of up to LONG_BITS, to
     * which all pairs of encoders belong. */
    PAIRS_AT_ONCE = 4,
    LONG_PAIRS_AT_ONCE = 2,
    LONG_BITS = 22,
};
_Static_assert(PAIRS_AT_ONCE * SF_PAIR_BITS <= 56 - SF_PAIR_BITS, "bits for the next look-up");
_Static_assert(LONG_PAIRS_AT_ONCE * LONG_BITS <= 56 - SF_PAIR_BITS, "bits for the next look-up");
_Static_assert(64 * SYMBOL_BITS % 8 == 0, "BLOCK_BYTES is not rounded down");

/* The place of a coefficient in a block, by the index of the next coefficient. Beyond the block it is the last place, as in
 * libjpeg-turbo; an early end writes a zero there, where a zero already is. */
#define LAST 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63
static const uint8_t PLACES[] = {
    0, /* index 0 does not exist */
    SF_ZIGZAG, LAST, LAST, LAST, LAST, LAST,
};
#undef LAST
_Static_assert(sizeof PLACES > 63 + 16 + END, "a run and an end may follow the last index");

/* ---- symbols: the numbers of bits of a code and its value, and how far the index moves ---- */

static inline uint32_t symbol_of(unsigned bits_of_value, unsigned by) {
    return bits_of_value | bits_of_value << 16 | by << 24;
}
static inline uint32_t with_code(uint32_t symbol, unsigned bits) { return symbol + (bits | bits << 8); }
static inline unsigned all_bits(uint32_t symbol) { return symbol & 255; }
static inline unsigned code_bits(uint32_t symbol) { return symbol >> 8 & 255; }
static inline unsigned value_bits(uint32_t symbol) { return symbol >> 16 & 255; }
static inline unsigned step(uint32_t symbol) { return symbol >> 24; }

/* The value of a symbol at the beginning of `bits`. A value whose first bit is 0 is negative. */
static inline int value_of(uint64_t bits, uint32_t symbol) {
    const uint64_t value = bits << code_bits(symbol);
    const int is_negative = (int)~((int64_t)value >> 63);
    return (int)(value >> 1 >> (63 - value_bits(symbol))) + (is_negative & (1 - (1 << value_bits(symbol))));
}

static uint32_t symbol_at(const sf_codes *codes, uint64_t bits) { return codes->symbols[bits >> (64 - SF_CODE_BITS)]; }

static uint32_t long_symbol_at(const sf_codes *codes, uint64_t bits) {
    const uint32_t start = (uint32_t)(bits >> 48);
    for (unsigned length = SF_CODE_BITS + 1; length <= 16; length++) {
        if (start >= codes->ends[length]) continue;
        return with_code(codes->placed[codes->places[length] + (int32_t)(start >> (16 - length))], length);
    }
    return 0;
}

/* ---- AC symbols with their values ---- */

/* One symbol: its number of bits, how far it moves the index, and its value. */
static inline uint32_t single_of(unsigned bits, unsigned by, int value) {
    return bits | by << 8 | (uint32_t)(uint16_t)value << 16;
}

/* Two symbols, or one: the first in the upper half; in the lower half the bits and the movement of both, and the second's
 * value. So a pair can be added to a place, which has the bits taken in its lowest byte and the index above. */
static inline uint64_t pair_of_singles(uint32_t one, uint32_t two) {
    return (uint64_t)(one << 16 | one >> 16) << 32 | ((one & 0xFFFF) + two);
}
static inline unsigned bits_of(uint64_t pair) { return pair & 255; }
static inline unsigned step_of(uint64_t pair) { return pair >> 8 & 255; }
static inline int16_t second_value(uint64_t pair) { return (int16_t)(pair >> 16); }
static inline int16_t first_value(uint64_t pair) { return (int16_t)(pair >> 32); }
static inline unsigned first_bits(uint64_t pair) { return pair >> 48 & 255; }
static inline unsigned first_step(uint64_t pair) { return (unsigned)(pair >> 56); }

/* A symbol whose value does not fit: it has the number of bits of its code instead. UNKNOWN: its code does not fit either. */
static const uint64_t UNKNOWN = (uint64_t)1 << 63;
static inline uint64_t pair_without_value(uint32_t one) { return pair_of_singles(one, 0) | UNKNOWN; }
static inline bool is_without_value(uint64_t pair) { return (int64_t)pair < 0; }
static inline uint32_t symbol_without_value(uint64_t pair) {
    const unsigned code = (uint16_t)first_value(pair), value = bits_of(pair) - code;
    return with_code(symbol_of(value, step_of(pair)), code);
}

/* ---- tables ---- */

/* Huffman tables differ between most images, so this must be fast: it fills ranges of the next bits, which ascend with the
 * symbols at their beginning, and avoids a branch for the second symbol. */
static void set_pairs(sf_codes *codes) {
    enum { COUNT = 1 << SF_PAIR_BITS };
    uint32_t singles[COUNT], end = 0; /* 0: no symbol fits with its value */
    const uint8_t *symbol = codes->values;
    for (unsigned length = 1; length <= SF_PAIR_BITS; length++) {
        for (int i = 0; i < codes->counts[length - 1]; i++, symbol++) {
            const unsigned size = *symbol & 15, run = *symbol >> 4, bits = length + size;
            const unsigned by = size || run == 15 ? run + 1 : END;
            const uint32_t first = end;
            if (bits > SF_PAIR_BITS) {
                const uint64_t pair = bits > LONG_BITS ? UNKNOWN : pair_without_value(single_of(bits, by, (int)length));
                for (; end < first + (1u << (SF_PAIR_BITS - length)); end++) {
                    singles[end] = 0;
                    codes->pairs[end] = pair;
                }
                continue;
            }
            for (int k = 0; k < 1 << size; k++) {
                const uint32_t single = single_of(bits, by, k < 1 << size >> 1 ? k + 1 - (1 << size) : k);
                for (uint32_t left = 1u << (SF_PAIR_BITS - bits); left > 0; left--) singles[end++] = single;
            }
        }
    }
    for (; end < COUNT; end++) {
        singles[end] = 0;
        codes->pairs[end] = UNKNOWN;
    }
    for (uint32_t k = 0; k < COUNT; k++) {
        const uint32_t one = singles[k], two = singles[k << bits_of(one) & (COUNT - 1)];
        const bool both = step_of(one) != END && bits_of(one) + bits_of(two) <= SF_PAIR_BITS;
        if (one) codes->pairs[k] = pair_of_singles(one, both ? two : 0);
    }
}

static const sf_codes *codes_of(sf_codes *codes, const sf_code_lengths *table, bool is_ac) {
    if (codes->count == table->count && !memcmp(codes->counts, table->counts, sizeof codes->counts) &&
        !memcmp(codes->values, table->symbols, (size_t)table->count)) {
        return codes;
    }
    codes->count = table->count;
    memcpy(codes->counts, table->counts, sizeof codes->counts);
    memcpy(codes->values, table->symbols, (size_t)table->count);
    memset(codes->symbols, 0, sizeof codes->symbols);
    uint32_t code = 0;
    int place = 0;
    for (unsigned length = 1; length <= 16; length++, code <<= 1) {
        codes->places[length] = place - (int32_t)code;
        for (int i = 0; i < table->counts[length - 1]; i++, code++, place++) {
            const unsigned value = table->symbols[place], bits = value & 15, run = is_ac ? value >> 4 : 0;
            const uint32_t symbol = codes->placed[place] = symbol_of(bits, bits || run == 15 ? run + 1 : END);
            if (length > SF_CODE_BITS) continue;
            const unsigned free = SF_CODE_BITS - length;
            for (uint32_t k = 0; k < 1u << free; k++) codes->symbols[(code << free) + k] = with_code(symbol, length);
        }
        codes->ends[length] = code << (16 - length);
    }
    if (is_ac) set_pairs(codes);
    return codes;
}

/* ---- decoding ---- */

/* Have 56 bits or more; a symbol with its value has up to 31. Bits beyond `count` are the next bits of the data, so reading
 * them again does no harm. */
static ALWAYS_INLINE void refill(sf_reader *r) {
    uint64_t bytes;
    memcpy(&bytes, r->next, sizeof bytes);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    bytes = __builtin_bswap64(bytes);
#endif
    r->bits |= bytes >> r->count;
    r->next += (63 - r->count) >> 3;
    r->count |= 56;
}

static ALWAYS_INLINE void drop(sf_reader *r, unsigned bits) {
    r->bits <<= bits;
    r->count -= bits;
}

static ALWAYS_INLINE uint32_t next_symbol(const sf_reader *r, const sf_codes *codes) {
    const uint32_t symbol = symbol_at(codes, r->bits);
    return RARE(!symbol) ? long_symbol_at(codes, r->bits) : symbol;
}

/* Decode a block's AC coefficients. The reader has enough bits for the first lookup. Bits are counted and read once for
 * several lookups, during the latency of the first one: each lookup waits only for the previous one. Skipping a block
 * ignores values, and needs no branch for long values. */
static ALWAYS_INLINE bool decode_ac(sf_reader *r, const sf_codes *ac, int16_t *block, bool keep) {
    uint64_t place = 1 << 8; /* the bits taken since the last count, and above them the index */
    for (;;) {
        uint64_t pair = ac->pairs[r->bits >> (64 - SF_PAIR_BITS)];
        refill(r);
#pragma GCC unroll 4
        for (int left = keep ? PAIRS_AT_ONCE : LONG_PAIRS_AT_ONCE; left > 0; left--) {
            if (RARE(keep ? is_without_value(pair) : !bits_of(pair))) {
                r->count -= bits_of(place);
                refill(r);
                const uint32_t symbol = bits_of(pair) ? symbol_without_value(pair) : next_symbol(r, ac);
                if (!symbol) return false;
                const unsigned index = step_of(place) + step(symbol);
                if (keep) block[PLACES[index]] = (int16_t)value_of(r->bits, symbol);
                drop(r, all_bits(symbol));
                if (index >= 64) return true;
                place = index << 8;
                break;
            }
            const uint64_t before = place;
            place += pair & 0xFFFF;
            const unsigned first = step_of(before) + first_step(pair), index = step_of(place);
            if (keep) { /* in this order: the first may be the block's last, and a single one is also the second */
                block[PLACES[index]] = second_value(pair);
                block[PLACES[first]] = first_value(pair);
            }
            if (place >= 64 << 8) {
                const unsigned bits = first >= 64 ? first_bits(pair) : bits_of(pair); /* the next symbol belongs to another block */
                r->bits <<= bits;
                r->count -= bits_of(before) + bits;
                return true;
            }
            r->bits <<= bits_of(pair) & 63;
            if (left > 1) {
                pair = ac->pairs[r->bits >> (64 - SF_PAIR_BITS)];
                continue;
            }
            r->count -= bits_of(place);
            place &= ~(uint64_t)255;
        }
    }
}

/* How many bits of the data are left; negative if the reader is beyond the end. */
static inline int64_t bits_left(const sf_entropy *e) {
    const int64_t taken = e->reader.next - (const uint8_t *)e->data.data;
    return 8 * ((int64_t)e->size - taken) + e->reader.count;
}

static ALWAYS_INLINE bool decode_mcu(sf_entropy *e, sf_coefficients *into, bool keep) {
    const int count = e->count;
    sf_reader r = e->reader;
    for (int i = 0; i < count; i++) {
        int16_t *const block = keep ? into[i] : NULL;
        refill(&r);
        const uint32_t symbol = next_symbol(&r, e->blocks[i].dc);
        if (!symbol) return false;
        uint32_t *const prediction = &e->predictions[e->blocks[i].component];
        *prediction += (uint32_t)value_of(r.bits, symbol);
        drop(&r, all_bits(symbol));
        if (keep) *block = (int16_t)*prediction;
        if (!decode_ac(&r, e->blocks[i].ac, block, keep)) return false;
    }
    e->reader = r;
    return bits_left(e) >= 0;
}

/* ---- a scan ---- */

/* Copy data up to a marker or the end, without the zero after each FF; returns the end of the copy. */
static uint8_t *unstuff(const uint8_t **from, const uint8_t *end, uint8_t *to) {
    const uint8_t *at = *from;
    for (;;) {
        const uint8_t *const found = memchr(at, 0xFF, (size_t)(end - at));
        const size_t plain = (size_t)((found ? found : end) - at);
        memcpy(to, at, plain);
        to += plain;
        at += plain;
        if (end - at < 2 || at[1]) break;
        *to++ = 0xFF;
        at += 2;
    }
    *from = at;
    return to;
}

/* Begin to read the data that ends at `to`. */
static void read_data(sf_entropy *e, uint8_t *to) {
    memset(to, 0, ZERO_BYTES);
    e->size = (size_t)(to - (uint8_t *)e->data.data);
    e->reader = (sf_reader){.next = e->data.data};
}

/* Read the data up to the next marker. */
static void begin(sf_entropy *e) {
    read_data(e, unstuff(&e->marker, e->end, e->data.data));
    e->left = e->interval;
    memset(e->predictions, 0, sizeof e->predictions);
}

/* Continue after the restart marker, which must be next. */
static bool restart(sf_entropy *e) {
    while (e->end - e->marker >= 2 && e->marker[1] == 0xFF) e->marker++; /* fill bytes before the marker */
    if (bits_left(e) >= 8 || e->end - e->marker < 2 || e->marker[1] != RST0 + e->restarts) return false;
    e->restarts = (e->restarts + 1) % 8;
    e->marker += 2;
    begin(e);
    return true;
}

static bool decode_any(sf_entropy *e, sf_coefficients *into) {
    return into ? decode_mcu(e, into, true) : decode_mcu(e, NULL, false);
}

/* ---- a window of a scan ---- */

static inline uint64_t bits_taken(const sf_entropy *e) {
    return 8 * (uint64_t)(e->reader.next - (const uint8_t *)e->data.data) - e->reader.count;
}

static bool is_at_checked_place(const sf_entropy *e) {
    if (e->checked->bit == 8 * (uint64_t)e->table->scan_bytes) return e->checked_bit - bits_taken(e) < 8; /* padding */
    if (e->checked_bit != bits_taken(e)) return false;
    for (int32_t c = 0; c < e->table->components; c++) {
        if (e->checked->predictions[c] != (uint16_t)e->predictions[c]) return false;
    }
    return true;
}

static bool decode_in_row(sf_entropy *e, sf_coefficients *into) {
    if (!decode_any(e, into)) return false;
    return ++e->next_column != e->checked_column || is_at_checked_place(e);
}

/* The stretch of a row that contains a column. */
static int32_t stretch_at(const sf_seek_table *table, int32_t column) {
    const int32_t stretch = column / table->stretch;
    return stretch < table->per_row ? stretch : table->per_row - 1;
}

/* Begin to read the data from `first` to `end`, with `checked` as the place to compare, which may be `end`. */
static bool read_stretches(sf_entropy *e, const sf_place *first, const sf_place *checked, const sf_place *end) {
    const uint8_t *at = e->scan + first->bit / 8, *stop = e->scan + checked->bit / 8;
    uint8_t *to = unstuff(&at, stop, e->data.data);
    if (at != stop) return false; /* the place is behind a marker, or between FF and its zero */
    e->checked = checked;
    e->checked_bit = 8 * (uint64_t)(to - (uint8_t *)e->data.data) + checked->bit % 8;
    stop = e->scan + (end->bit + 7) / 8;
    if (stop[-1] == 0xFF) stop++;
    to = unstuff(&at, stop, to);
    if (at != stop) return false;

    read_data(e, to);
    refill(&e->reader);
    drop(&e->reader, first->bit % 8);
    for (int c = 0; c < MAX_COMPS_IN_SCAN; c++) e->predictions[c] = first->predictions[c];
    return true;
}

/* Decode the stretch before a place, and compare its end with the place. */
static bool is_behind_the_stretch_before(sf_entropy *e, size_t number) {
    const sf_seek_table *const table = e->table;
    const sf_place *const place = (const sf_place *)table->places.data + number;
    const int32_t stretch = (int32_t)((number + (size_t)table->per_row - 1) % (size_t)table->per_row);
    const bool is_last = stretch == table->per_row - 1;
    e->next_column = stretch * table->stretch;
    e->checked_column = is_last ? table->columns : e->next_column + table->stretch;
    if (!read_stretches(e, place - 1, place, place)) return false;
    while (e->next_column < e->checked_column) {
        if (!decode_in_row(e, NULL)) return false;
    }
    return true;
}

/* Read the stretches of a row that the window touches, from its first MCU on. In each row one place is compared: the last
 * place inside the window or, without one, the next place. The end of the scan lacks predictors to compare, so there the
 * first place that is read is compared too. */
static bool begin_row(sf_entropy *e, int32_t row) {
    const sf_seek_table *const table = e->table;
    const size_t number = (size_t)row * (size_t)table->per_row;
    const sf_place *const places = (const sf_place *)table->places.data + number;
    const int32_t first = stretch_at(table, e->window.left), last = stretch_at(table, e->window.right - 1);
    int32_t checked = e->window.right == table->columns ? table->per_row : stretch_at(table, e->window.right);
    if (checked <= first) checked = first + 1;
    const bool is_end = row == table->rows - 1 && checked == table->per_row;
    if (is_end && number + (size_t)first > 0 && !is_behind_the_stretch_before(e, number + (size_t)first)) return false;
    if (!read_stretches(e, places + first, places + checked, places + (checked > last ? checked : last + 1))) return false;
    e->checked_column = checked == table->per_row ? table->columns : checked * table->stretch;
    e->next_column = first * table->stretch;
    while (e->next_column < e->window.left) {
        if (!decode_in_row(e, NULL)) return false;
    }
    return true;
}

static bool decode_in_window(sf_entropy *e, sf_coefficients *into) {
    const sf_window window = e->window;
    const int32_t row = e->row, column = e->column++;
    if (e->column == e->table->columns) {
        e->column = 0;
        e->row++;
    }
    if (row < window.top || row >= window.bottom || column < window.left || column >= window.right) return true;
    if (column == window.left && !begin_row(e, row)) return false;
    if (!decode_in_row(e, into)) return false;
    while (column + 1 == window.right && e->next_column < e->checked_column) {
        if (!decode_in_row(e, NULL)) return false;
    }
    return true;
}

/* ---- public ---- */

bool sf_entropy_decode(sf_entropy *e, sf_coefficients *into) {
    if (e->table) return decode_in_window(e, into);
    if (RARE(!e->reader.next)) begin(e);
    if (e->interval) {
        if (e->left == 0 && !restart(e)) return false;
        e->left--;
    }
    return decode_any(e, into);
}

void sf_entropy_init(sf_entropy *e) {
    for (int i = 0; i < NUM_HUFF_TBLS; i++) e->dc[i].count = e->ac[i].count = -1;
}

bool sf_entropy_start(sf_entropy *e, const sf_jpeg *jpeg) {
    e->count = 0;
    for (int c = 0; c < jpeg->shape.count; c++) {
        const sf_codes *const dc = codes_of(&e->dc[jpeg->dc[c] - jpeg->codes[0]], jpeg->dc[c], false);
        const sf_codes *const ac = codes_of(&e->ac[jpeg->ac[c] - jpeg->codes[1]], jpeg->ac[c], true);
        for (int i = 0; i < jpeg->mcu_h[c] * jpeg->mcu_v[c]; i++, e->count++) {
            e->blocks[e->count].dc = dc;
            e->blocks[e->count].ac = ac;
            e->blocks[e->count].component = c;
        }
    }
    e->scan = e->marker = jpeg->scan;
    e->end = jpeg->end;
    e->interval = jpeg->interval;
    e->restarts = 0;
    e->reader.next = NULL;
    e->table = NULL;
    return sf_reserve(&e->data, (size_t)(e->end - e->scan) + ZERO_BYTES);
}

void sf_entropy_narrow(sf_entropy *e, const sf_seek_table *table, sf_window window) {
    e->table = table;
    e->window = window;
    e->row = e->column = 0;
    e->marker = e->scan + table->scan_bytes;
}

bool sf_entropy_find_places(sf_entropy *e, size_t count, sf_place *places) {
    const uint8_t *at = e->scan;
    begin(e);
    for (size_t i = 0, bytes = 0; i < count; i++) {
        const uint64_t bit = bits_taken(e);
        for (; bytes < bit / 8; bytes++) at += *at == 0xFF ? 2 : 1;
        places[i].bit = 8 * (uint64_t)(at - e->scan) + bit % 8;
        for (int c = 0; c < MAX_COMPS_IN_SCAN; c++) places[i].predictions[c] = (uint16_t)e->predictions[c];
        if (!decode_any(e, NULL)) return false;
    }
    return bits_left(e) < 8;
}

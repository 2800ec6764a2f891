/* libFuzzer's entry: the input is 16 bytes that choose a crop and its settings, and a JPEG, or pixels.
 *
 * One decoder lives through all inputs, as in a worker process, so that the state that an image leaves is tested with the
 * next one. Inputs are decoded by the kernel, in vectors or in plain C, and by libjpeg-turbo, which must agree, and every
 * fourth between two copies of a good image, whose pixels must not change. Images that can have a seek table are decoded with
 * it as well, and with others. A table that an input holds is made anew after many mutations, and has a right sum after most,
 * or it would never be used: at the end is said how many were. The output is allocated to the byte, so that the address sanitizer sees a write beside it. JPEGs are
 * transcoded as well, in both ways, and the good one after each; the seek table that is then written is that of the scan.
 */
#define _GNU_SOURCE /* memmem, memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "seek.h"
#include "workspace.h" /* whether a table was used is known in there alone */

enum { CHOICE_BYTES = 16, GOOD_BYTES_MAX = 1 << 16 };

static sf_workspace *ways[3], *decoders[2]; /* by libjpeg-turbo, and by the kernel itself */
static uint8_t good[GOOD_BYTES_MAX];
static size_t good_size;
static sf_header good_header;
static const uint8_t all[3] = {1, 1, 1};
static size_t inputs, inputs_with_table, tables_read, tables_used;

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

static void report(void) {
    fprintf(stderr, "seek tables: in %zu of %zu inputs, read in %zu, used in %zu\n", inputs_with_table, inputs, tables_read,
            tables_used);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    char message[SF_MESSAGE_BYTES];
    const char *path = getenv("FUZZ_LIBJPEG"), *good_path = getenv("FUZZ_GOOD");
    sf_library *library = path ? sf_library_open(path, message) : NULL;
    FILE *file = good_path ? fopen(good_path, "rb") : NULL;
    if (!library || !file) {
        fprintf(stderr, "set FUZZ_LIBJPEG to a libjpeg-turbo and FUZZ_GOOD to a small JPEG\n");
        exit(2);
    }
    good_size = fread(good, 1, sizeof good, file);
    fclose(file);
    sf_problem problem;
    for (int way = SF_BY_LIBRARY; way <= SF_FAST; way++) ways[way] = sf_workspace_new(library, way);
    decoders[0] = ways[SF_BY_LIBRARY];
    decoders[1] = ways[SF_FAST];
    if (sf_read_header(decoders[0], good, good_size, &good_header, &problem) != SF_OK) exit(2);
    atexit(report);
    return 0;
}

static void check(int truth, const char *what) {
    if (truth) return;
    fprintf(stderr, "not true: %s\n", what);
    abort();
}

/* Return a number from 0 to limit - 1, often one of the two. */
static int32_t below(int32_t limit, uint8_t byte, uint8_t fine) {
    if (limit <= 1 || byte == 0) return 0;
    if (byte == 255) return limit - 1;
    return (int32_t)(((int64_t)byte * 256 + fine) * limit / 65536);
}

/* Decode the batch as a view next to one of whole images in squares; without a fault it equals the view alone, unless it
 * `may_differ`. */
static void check_views(sf_workspace *decoder, const sf_batch *batch, int32_t found, int may_differ) {
    const size_t bytes = (size_t)batch->count * batch->image_stride;
    sf_batch views[2] = {*batch, *batch};
    static const int64_t places[3][3] = {{0, 16, 24}, {1152, 24, 16}, {2304, 8, 8}};
    views[1].boxes = views[1].resized = NULL;
    views[1].places = places[0];
    views[1].patch = 1 << bytes % 4;
    for (int v = 0; v < 2; v++) {
        views[v].out = malloc(v ? 2496 : bytes);
        if (!views[v].out) abort();
    }
    sf_problem problems[3];
    if (!sf_decode(decoder, views, 2, problems)) {
        check(may_differ || (!found && !memcmp(views[0].out, batch->out, bytes)), "a view equals the view alone");
    }
    for (int v = 0; v < 2; v++) free(views[v].out);
}

/* Where the header of the scan begins in an image of consecutive segments; 0 in others. */
static size_t scan_of(const uint8_t *image, size_t size) {
    for (size_t at = 2; at + 4 <= size && image[at] == 0xFF; at += 2 + (image[at + 2] << 8 | image[at + 3])) {
        if (image[at + 1] == 0xDA) return at;
    }
    return 0;
}

static void set_sum(uint8_t *segment, size_t bytes) {
    uint32_t a = 1, b = 0;
    for (size_t i = 4; i < bytes - 4; i++) {
        a = (a + segment[i]) % 65521;
        b = (b + a) % 65521;
    }
    for (int i = 0; i < 4; i++) segment[bytes - 4 + i] = (uint8_t)((b << 16 | a) >> (24 - 8 * i));
}

/* Return the first seek table of an image of consecutive segments, NULL without one. */
static uint8_t *table_of(uint8_t *image, size_t size, size_t *bytes) {
    const size_t scan = scan_of(image, size);
    for (size_t at = 2; at < scan; at += *bytes) {
        *bytes = 2 + (size_t)(image[at + 2] << 8 | image[at + 3]);
        if (image[at + 1] == 0xE9 && *bytes > 26 && at + *bytes <= scan && !memcmp(image + at + 4, "sf-seek", 8)) {
            return image + at;
        }
    }
    return NULL;
}

/* Give an image the table that its scan has, if it can have one and there is room; returns its size. */
static size_t with_new_table(uint8_t *image, size_t size, size_t most) {
    static const sf_limits none = {1 << 18, 9 << 18, 15 << 18, 500};
    static uint8_t segment[SF_SEGMENT_BYTES];
    size_t bytes, old_bytes = 0;
    sf_problem problem;
    sf_seek_table_of(ways[SF_FAST], image, size, &none, segment, &bytes, &problem);
    uint8_t *const old = table_of(image, size, &old_bytes);
    if (!bytes || !scan_of(image, size) || size - (old ? old_bytes : 0) + bytes > most) return size;
    if (old) {
        memmove(old, old + old_bytes, (size_t)(image + size - old) - old_bytes);
        size -= old_bytes;
    }
    const size_t scan = scan_of(image, size);
    memmove(image + scan + bytes, image + scan, size - scan);
    memcpy(image + scan, segment, bytes);
    return size + bytes;
}

/* libFuzzer's mutations, also of the crop alone, and those of a table alone; then a new table, or a right sum, but for some. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    size_t bytes;
    if (size <= CHOICE_BYTES) return LLVMFuzzerMutate(data, size, most);
    uint8_t *const image = data + CHOICE_BYTES;
    uint8_t *table = table_of(image, size - CHOICE_BYTES, &bytes);
    if (table && seed % 4 == 1) {
        for (unsigned random = seed, left = 1 + seed / 4 % 4; left > 0; left--) {
            random = random * 1664525 + 1013904223;
            table[13 + random / 65536 % (bytes - 17)] ^= (uint8_t)(1 << random / 256 % 8);
        }
    } else if (table && seed % 4 == 2) {
        LLVMFuzzerMutate(data, CHOICE_BYTES, CHOICE_BYTES);
    } else {
        size = LLVMFuzzerMutate(data, size, most);
        if (size > CHOICE_BYTES && seed / 16 % 4) {
            size = CHOICE_BYTES + with_new_table(image, size - CHOICE_BYTES, most - CHOICE_BYTES);
        }
    }
    table = size > CHOICE_BYTES ? table_of(image, size - CHOICE_BYTES, &bytes) : NULL;
    if (table && seed / 64 % 8) set_sum(table, bytes);
    if (table && seed / 512 % 4) { /* a table is read for a crop alone, of a batch of one, within wide limits */
        data[13] = (uint8_t)((data[13] & 0xF8) | 1);
        data[15] = (uint8_t)((data[15] & 0x83) | 0x60);
    }
    return size;
}

/* Decode a batch of one image with the seek table that it should have, which changes nothing, and with one that lies, which
 * adds no problem to an image that has none. */
static void check_tables(const sf_batch *batch, int32_t found, const uint8_t *choice) {
    static uint8_t segment[SF_SEGMENT_BYTES];
    const uint8_t *const image = batch->images[0];
    const size_t size = batch->sizes[0], scan = scan_of(image, size);
    size_t bytes;
    sf_problem problem;
    sf_seek_table_of(decoders[1], image, size, &batch->limits, segment, &bytes, &problem);
    if (!bytes || !scan) return;
    check(problem.status == SF_OK || problem.status == SF_DAMAGED, "an image with a problem has no table");
    uint8_t *const with_table = malloc(size + bytes), *const out = malloc(batch->image_stride);
    if (!with_table || !out) abort();
    memcpy(with_table, image, scan);
    memcpy(with_table + scan, segment, bytes);
    memcpy(with_table + scan + bytes, image + scan, size - scan);
    const uint8_t *const images[1] = {with_table};
    const size_t sizes[1] = {size + bytes};
    sf_batch again = *batch;
    again.images = images;
    again.seek_tables = all;
    again.sizes = sizes;
    again.out = out;
    check(sf_decode(decoders[1], &again, 1, &problem) == found, "the problem is that without a table");
    check(!memcmp(out, batch->out, batch->image_stride), "the pixels are those without a table");
    for (int i = 0; i < CHOICE_BYTES / 2; i++) {
        const size_t at = 13 + (size_t)(choice[2 * i] * 256 + choice[2 * i + 1]) % (bytes - 17);
        with_table[scan + at] ^= choice[CHOICE_BYTES - 1 - i] | 1;
        set_sum(with_table + scan, bytes);
        check(sf_decode(decoders[1], &again, 1, &problem) == found, "a table adds no problem");
    }
    free(with_table);
    free(out);
}

/* Decode a batch of one image out of a file, which changes nothing. */
static void check_in_file(const sf_batch *batch, int32_t found) {
    static int descriptor = -1;
    enum { BEFORE = 3 };
    const size_t size = batch->sizes[0];
    if (descriptor < 0) descriptor = memfd_create("image", 0);
    if (ftruncate(descriptor, BEFORE + (off_t)size) || pwrite(descriptor, batch->images[0], size, BEFORE) != (ssize_t)size) abort();
    const sf_part part = {.offset = BEFORE, .size = (int64_t)size, .crc32 = sf_crc32(batch->images[0], size, SF_PLAIN)};
    const sf_file file = {.descriptor = descriptor, .begin = BEFORE, .bytes = (int64_t)size, .parts = 1};
    sf_problem problem;
    sf_batch again = *batch;
    again.files = &file;
    again.parts = &part;
    again.out = malloc(batch->image_stride);
    if (!again.out) abort();
    check(sf_decode(decoders[1], &again, 1, &problem) == found, "the problem is that of the image in memory");
    check(!memcmp(again.out, batch->out, batch->image_stride), "the pixels are those of the image in memory");
    free(again.out);
}

/* Transcode to at most 55 pixels a side; returns the status. */
static int transcode(sf_workspace *decoder, const uint8_t *image, size_t size, const sf_header *header,
                     const sf_limits *limits, const uint8_t *choice, sf_transcoded *made) {
    sf_problem problem;
    sf_transcoding asked = {
        .image = image, .size = size, .limits = *limits,
        .stored = {header->width, header->height},
        .resized = {1 + choice[0] % 55, 1 + choice[1] % 55},
        .orientation = 1 + choice[2] % 8,
        .filter = choice[3] % 3, .oversampling = choice[4] % 4, .quality = 1 + choice[5] % 100,
        .sampling = {1 + choice[6] % 2, 1 + choice[7] % 2},
        .with_seek_table = choice[13] & 1,
    };
    const int transposed = asked.orientation >= 5;
    for (int axis = 0; axis < 2; axis++) {
        const int32_t whole = asked.resized[transposed ? 1 - axis : axis];
        asked.window[axis] = below(whole, choice[8 + axis], 0);
        asked.window[2 + axis] = 1 + below(whole - asked.window[axis], choice[10 + axis], 0);
    }
    if (choice[12] > 250) asked.window[choice[3] % 4] = (int32_t)0x80000000 >> (choice[4] % 32);
    const int status = sf_transcode(decoder, &asked, made, &problem);
    if (status != SF_OK) check(memchr(problem.message, 0, SF_MESSAGE_BYTES) != NULL, "the message ends");
    return status;
}

/* The table in front of the scan is the one that is made of the JPEG; there is none only where none can be. */
static void check_table(const sf_transcoded *made) {
    static uint8_t segment[SF_SEGMENT_BYTES];
    static const sf_limits none = {1 << 18, 9 << 18, 15 << 18, 500};
    const size_t scan = scan_of(made->image, made->size);
    size_t bytes;
    sf_problem problem;
    const int status = sf_seek_table_of(decoders[1], made->image, made->size, &none, segment, &bytes, &problem);
    check(status == SF_OK && scan > bytes, "it is a whole JPEG");
    check(!memcmp(made->image + scan - bytes, segment, bytes), "the table is that of its scan");
}

static void check_transcoding(const uint8_t *image, size_t size, const sf_header *header, const sf_limits *limits,
                              const uint8_t *choice) {
    static const uint8_t plainly[16] = {19, 17, 0, 1, 2, 89, 1, 1, 0, 0, 255, 255};
    static const sf_limits none = {1 << 18, 9 << 18, 15 << 18, 500};
    static uint8_t wanted[1 << 14];
    static size_t wanted_size;
    sf_transcoded made[2];
    int found[2];
    for (int fast = 0; fast < 2; fast++) {
        found[fast] = transcode(decoders[fast], image, size, header, limits, choice, &made[fast]);
    }
    /* A fault in Huffman codes that libjpeg-turbo does not mind is a problem to the fast way alone. */
    if (found[0] == SF_OK && found[1] == SF_OK) {
        check(made[0].size == made[1].size && !memcmp(made[0].image, made[1].image, made[0].size), "the same bytes");
        check(!memcmp(made[0].sums, made[1].sums, sizeof made[0].sums), "the same sums");
        check(!memcmp(made[0].squares, made[1].squares, sizeof made[0].squares), "the same squares");
        if (choice[13] & 1) check_table(&made[0]);
    }
    check(transcode(decoders[1], good, good_size, &good_header, &none, plainly, &made[0]) == SF_OK, "a good image");
    if (wanted_size == 0) memcpy(wanted, made[0].image, wanted_size = made[0].size);
    check(made[0].size == wanted_size && !memcmp(made[0].image, wanted, wanted_size), "it is as without the other");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < CHOICE_BYTES) return 0;
    const uint8_t *choice = data;
    decoders[1] = ways[choice[15] & 128 ? SF_PLAIN : SF_FAST];
    /* A copy of the exact size, so that a read beyond the image is seen too. */
    const size_t image_size = size - CHOICE_BYTES;
    uint8_t *image = malloc(image_size ? image_size : 1);
    if (!image) return 0;
    memcpy(image, data + CHOICE_BYTES, image_size);

    sf_header header = {.width = 1, .height = 1};
    sf_problem problem;
    int32_t decoded[6] = {0}; /* every eighth input is pixels, as those of the loader's cache */
    const int is_pixels = (choice[15] & 28) == 28 && image_size >= 3;
    if (is_pixels) {
        const int32_t pixels = (int32_t)(image_size / 3);
        decoded[2] = header.width = 1 + choice[15] / 32 * 9 % pixels;
        decoded[3] = header.height = pixels / header.width;
    } else {
        sf_read_header(decoders[0], image, image_size, &header, &problem);
    }
    /* One of its own may be of a scan that is damaged elsewhere, where only the plain code looks. */
    const int has_table = memmem(image, image_size, "sf-seek", 8) != NULL;
    inputs++;
    inputs_with_table += has_table != 0;
    /* The limits as the loader scales them, often so tight that images meet them. */
    const int64_t least = (int64_t)good_header.width * good_header.height;
    const int64_t pixels_allowed = choice[15] & 32 ? 1 << 18 : least + choice[12] * choice[14] / 4;
    const sf_limits limits = {pixels_allowed, 9 * pixels_allowed, 15 * pixels_allowed, choice[15] & 64 ? 500 : 4};

    const int32_t width = 1 + choice[0] % 40, height = 1 + choice[1] % 40;
    int32_t boxes[12] = {0, 0, good_header.width, good_header.height, 0, 0, 0, 0,
                         0, 0, good_header.width, good_header.height};
    int32_t resized[12] = {width, height, 0, 0, width, height, 0, 0, width, height, 0, 0};
    int32_t *box = boxes + 4, *window = resized + 4;
    box[0] = below(header.width, choice[2], choice[3]);
    box[1] = below(header.height, choice[4], choice[5]);
    box[2] = 1 + below(header.width - box[0], choice[6], choice[7]);
    box[3] = 1 + below(header.height - box[1], choice[8], choice[9]);
    window[2] = choice[10] % 16;
    window[3] = choice[11] % 16;
    window[0] += window[2] + choice[12] % 16;
    window[1] += window[3] + choice[12] / 16;
    if (choice[13] > 250) box[choice[2] % 4] = (int32_t)0x80000000 >> (choice[3] % 32); /* sometimes an invalid one */
    const uint8_t flips[3] = {0, choice[14] & 1, 0};

    const int32_t first = choice[13] & 3 ? 1 : 0, count = first ? 1 : 3;
    const size_t image_bytes = 3 * (size_t)width * (size_t)height;
    const uint8_t *const images[3] = {good, image, good};
    const size_t sizes[3] = {good_size, image_size, good_size};
    uint8_t *out[2];
    sf_problem problems[2][3];
    int32_t found[2];
    for (int fast = 0; fast < 2; fast++) {
        out[fast] = malloc((size_t)count * image_bytes);
        if (!out[fast]) abort();
        const sf_batch batch = {
            .images = images + first,
            .sizes = sizes + first,
            .boxes = choice[13] & 4 ? NULL : boxes + 4 * first,
            .resized = resized + 4 * first,
            .flips = flips + first,
            .out = out[fast],
            .image_stride = image_bytes,
            .decoded = decoded + 2 * first,
            .seek_tables = all,
            .limits = limits,
            .count = count,
            .width = width,
            .height = height,
            .interleaved = choice[14] >> 1 & 1,
            .filter = (choice[14] >> 2) % 3,
            .oversampling = choice[15] % 4,
        };
        sf_decoder *const inside = &decoders[fast]->decoder;
        inside->entropy.table = NULL;
        inside->seek_table.scan_bytes = 0;
        found[fast] = sf_decode(decoders[fast], &batch, 1, problems[fast]);
        tables_read += fast && count == 1 && inside->seek_table.scan_bytes > 0;
        tables_used += fast && count == 1 && inside->entropy.table != NULL;
        if (!batch.oversampling) check_views(decoders[fast], &batch, found[fast], has_table);
        if (fast && count == 1 && !is_pixels) check_in_file(&batch, found[fast]);
        if (fast && count == 1 && !is_pixels && !has_table) check_tables(&batch, found[fast], choice);
    }
    check(found[0] <= 1 && found[1] <= 1, "at most the one image has a problem");
    check(has_table || found[0] == found[1], "both ways have a problem");
    check(has_table || !memcmp(out[0], out[1], (size_t)count * image_bytes), "both ways write the same");
    check(!memcmp(out[0], out[0] + (size_t)(count - 1) * image_bytes, image_bytes), "the neighbours are as without it");
    const int64_t pixels = (int64_t)header.width * header.height;
    const int status = found[0] ? problems[0][0].status : SF_OK;
    if (!is_pixels && pixels > limits.pixels) check(status != SF_OK && status != SF_DAMAGED, "the limit is kept");
    if (is_pixels) check(status == SF_OK || status == SF_BAD_BOX, "pixels have no other problem");
    if (found[0] && !has_table) {
        check(problems[0][0].index == count / 2, "the problem is its own");
        check(problems[0][0].status == problems[1][0].status, "both ways find the same");
        check(memchr(problems[0][0].message, 0, SF_MESSAGE_BYTES) != NULL, "the message ends");
        check(!strncmp(problems[0][0].message, problems[1][0].message, SF_MESSAGE_BYTES), "both ways say the same");
    }
    if (!is_pixels && header.width > 0) check_transcoding(image, image_size, &header, &limits, choice);
    free(out[0]);
    free(out[1]);
    free(image);
    return 0;
}

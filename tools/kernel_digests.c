/* Decode crops of JPEGs, whole and damaged, with a built kernel, and print a digest of the pixels of each file and its CRC-32.
 *
 *   cc -I shardflow/native tools/kernel_digests.c PATH/_kernel.so -o kernel_digests
 *   kernel_digests LIBJPEG FILE...
 *
 * The files are the fuzzer's seeds (tools/fuzz/seeds.py): 16 bytes, from which the crops are drawn, and a JPEG. Fails where
 * the vectors and plain C differ, or where of whole files libjpeg-turbo makes other pixels; or where the processor's
 * instructions have another CRC-32 than tables, of any part of a file. Kernels for two processors that print the same make
 * the same pixels.
 */
#include <stdio.h>
#include <string.h>

#include "kernel.h"

enum { CHOICE_BYTES = 16, CROPS = 200, SIDE_MAX = 96 };

static uint64_t state;

static int32_t below(int32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((state >> 33) % (uint32_t)limit);
}

static uint64_t add(uint64_t digest, const void *data, size_t size) { /* FNV-1a */
    for (const uint8_t *at = data, *end = at + size; at < end; at++) digest = (digest ^ *at) * 1099511628211u;
    return digest;
}

typedef struct {
    uint64_t all, whole; /* of all crops, and of those of the whole file */
} digests;

static digests digest_crops(sf_workspace *decoder, uint8_t *bytes, size_t size) {
    const uint8_t *const image = bytes;
    static uint8_t out[3 * SIDE_MAX * SIDE_MAX];
    digests found = {14695981039346656037u, 14695981039346656037u};
    sf_header header = {.width = 1, .height = 1};
    sf_problem problem = {0};
    sf_read_header(decoder, image, size, &header, &problem);
    for (int crop = 0; crop < CROPS; crop++) {
        const int32_t x = below(header.width), y = below(header.height);
        const int32_t box[4] = {x, y, 1 + below(header.width - x), 1 + below(header.height - y)};
        const uint8_t flip = (uint8_t)below(2);
        const int32_t width = 1 + below(SIDE_MAX), height = 1 + below(SIDE_MAX), interleaved = below(2);
        const int32_t filter = below(3), oversampling = below(3), at = below((int32_t)size);
        const sf_batch batch = {
            .images = &image, .sizes = &size, .boxes = box, .flips = &flip, .out = out,
            .limits = {.pixels = 1 << 20, .memory_bytes = 9 << 20, .scan_pixels = 15 << 20, .scans = 500},
            .count = 1, .width = width, .height = height, .interleaved = interleaved, .filter = filter,
            .oversampling = oversampling,
        };
        const uint8_t was = bytes[at];
        if (crop % 4 == 0) bytes[at] ^= (uint8_t)(1 << below(8));
        const int32_t problems = sf_decode(decoder, &batch, 1, &problem);
        bytes[at] = was;
        const size_t made = 3 * (size_t)width * (size_t)height;
        found.all = add(add(found.all, out, made), problem.message, problems ? strlen(problem.message) : 0);
        if (crop % 4) found.whole = add(found.whole, out, made);
    }
    return found;
}

/* The CRC-32 of the data; sets `differs` where the ways to compute that of its head or tail differ. */
static uint32_t checksum(const uint8_t *data, size_t size, int *differs) {
    for (size_t part = 0; part <= size; part += 1 + part / 64) {
        *differs |= sf_crc32(data, part, SF_FAST) != sf_crc32(data, part, SF_PLAIN);
        *differs |= sf_crc32(data + part, size - part, SF_FAST) != sf_crc32(data + part, size - part, SF_PLAIN);
    }
    return sf_crc32(data, size, SF_FAST);
}

int main(int count, char **arguments) {
    char message[SF_MESSAGE_BYTES] = "usage: kernel_digests LIBJPEG FILE...";
    sf_library *library = count > 2 ? sf_library_open(arguments[1], message) : NULL;
    sf_workspace *ways[3] = {NULL};
    for (int way = SF_BY_LIBRARY; library && way <= SF_FAST; way++) ways[way] = sf_workspace_new(library, way);
    if (!ways[SF_BY_LIBRARY] || !ways[SF_PLAIN] || !ways[SF_FAST]) {
        fprintf(stderr, "%s\n", message);
        return 2;
    }
    fprintf(stderr, "kernel_digests: %s, and %s\n", sf_workspace_about(ways[SF_PLAIN]), sf_workspace_about(ways[SF_FAST]));
    for (int i = 2; i < count; i++) {
        static uint8_t data[1 << 16];
        FILE *file = fopen(arguments[i], "rb");
        const size_t size = file ? fread(data, 1, sizeof data, file) : 0;
        if (file) fclose(file);
        if (size <= CHOICE_BYTES) return 2;
        int differs = 0;
        const uint32_t sum = checksum(data, size, &differs);
        digests made[3];
        for (int way = SF_BY_LIBRARY; way <= SF_FAST; way++) {
            memcpy(&state, data, sizeof state);
            made[way] = digest_crops(ways[way], data + CHOICE_BYTES, size - CHOICE_BYTES);
        }
        printf("%016llx %08x\n", (unsigned long long)made[SF_FAST].all, (unsigned)sum);
        differs |= made[SF_FAST].all != made[SF_PLAIN].all || made[SF_FAST].whole != made[SF_BY_LIBRARY].whole;
        if (!differs) continue;
        fprintf(stderr, "%s: the ways to decode it, or to compute its CRC-32, differ\n", arguments[i]);
        return 1;
    }
    return 0;
}

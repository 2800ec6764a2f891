#define _GNU_SOURCE /* dladdr */

#include "libjpeg.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

typedef struct {
    jmp_buf escape;
    char *message;
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
    int mcus;
} trial;

static void fail_trial(j_common_ptr info) {
    trial *attempt = info->client_data;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    snprintf(attempt->message, SF_MESSAGE_BYTES, "%s", text);
    longjmp(attempt->escape, 1);
}

/* The creator compares version and size with those that the library was compiled with, before it touches the structure:
 * the guard against a library with another layout. */
static bool has_layout(const struct sf_library *library, char *message) {
    trial attempt = {.message = message};
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct info = {.err = library->jpeg_std_error(&errors), .client_data = &attempt};
    errors.error_exit = fail_trial;
    if (setjmp(attempt.escape)) return false;
    sf_create_decompress(library, &info);
    library->jpeg_destroy_decompress(&info);
    return true;
}

static bool choose_layout(struct sf_library *library, char *message) {
    const size_t before = offsetof(struct jpeg_decompress_struct, later);
    const struct jpeg_decompress_struct *const info = NULL;
    library->api = 62;
    library->info_bytes = before + sizeof info->later.api62;
    if (has_layout(library, message)) return true;
    library->api = 80;
    library->info_bytes = before + sizeof info->later.api80;
    return has_layout(library, message);
}

void sf_create_decompress(const struct sf_library *library, j_decompress_ptr info) {
    library->jpeg_CreateDecompress(info, library->api, library->info_bytes);
}

sf_component sf_component_of(const struct sf_library *library, const struct jpeg_decompress_struct *info, int index) {
#define SF_COMPONENT(type)                                                                                      \
    (sf_component) {                                                                                            \
        .h_samp_factor = ((const type *)info->comp_info)[index].h_samp_factor,                                  \
        .v_samp_factor = ((const type *)info->comp_info)[index].v_samp_factor,                                  \
        .scaled_size = ((const type *)info->comp_info)[index].DCT_scaled_size,                                  \
        .width_in_blocks = ((const type *)info->comp_info)[index].width_in_blocks,                              \
        .width = ((const type *)info->comp_info)[index].downsampled_width,                                      \
        .height = ((const type *)info->comp_info)[index].downsampled_height,                                    \
    }
    if (library->api == 62) return SF_COMPONENT(sf_component62);
    return SF_COMPONENT(sf_component80);
#undef SF_COMPONENT
}

sf_coding sf_coding_of(const struct sf_library *library, const struct jpeg_decompress_struct *info) {
#define SF_CODING(later)                                                                                      \
    (sf_coding) {                                                                                             \
        .progressive = later.progressive_mode, .arithmetic = later.arith_code,                                \
        .restart_interval = later.restart_interval, .max_h_samp_factor = later.max_h_samp_factor,             \
        .max_v_samp_factor = later.max_v_samp_factor,                                                         \
        .comps_in_scan = later.comps_in_scan, .blocks_in_MCU = later.blocks_in_MCU, .Ss = later.Ss,           \
        .Se = later.Se, .Ah = later.Ah, .Al = later.Al, .unread_marker = later.unread_marker,                 \
        .cur_comp_info = later.cur_comp_info, .MCU_membership = later.MCU_membership, .entropy = later.entropy, \
    }
    if (library->api == 62) return SF_CODING(info->later.api62);
    return SF_CODING(info->later.api80);
#undef SF_CODING
}

static boolean count_mcu(j_decompress_ptr info, JBLOCKROW *into) {
    trial *attempt = info->client_data;
    attempt->mcus++;
    return attempt->decode_mcu(info, into);
}

static void ignore(j_decompress_ptr info) { (void)info; }

static boolean fail_to_fill(j_decompress_ptr info) {
    fail_trial((j_common_ptr)info);
    return FALSE;
}

static void decode_counting(const struct sf_library *library, j_decompress_ptr info, JSAMPROW line) {
    trial *const attempt = info->client_data;
    if (setjmp(attempt->escape)) return;
    library->jpeg_read_header(info, TRUE);
    library->jpeg_start_decompress(info);
    struct jpeg_entropy_decoder *const entropy = sf_coding_of(library, info).entropy;
    if (!entropy) return; /* a library with the same interface, but another structure behind it */
    attempt->decode_mcu = entropy->decode_mcu;
    entropy->decode_mcu = count_mcu;
    library->jpeg_read_scanlines(info, &line, 1);
}

/* Decode a grey image of three MCUs, and see whether they are asked for where they should be. */
static bool asks_for_mcus(const struct sf_library *library) {
    uint8_t image[] = {
        0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0, /* then 64 quantisers */
        [7 + 64] = 0xFF, 0xC0, 0, 11, 8, 0, 8, 0, 24, 1, 1, 0x11, 0, /* 24 x 8 pixels */
        0xFF, 0xC4, 0, 20, 0x00, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* DC: one code, no difference */
        0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* AC: one code, end of block */
        0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0, 0x03, 0xFF, 0xD9,
    };
    memset(image + 7, 1, 64);
    char message[SF_MESSAGE_BYTES];
    uint8_t line[24];
    trial attempt = {.message = message};
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source = {
        .next_input_byte = image, .bytes_in_buffer = sizeof image, .init_source = ignore,
        .fill_input_buffer = fail_to_fill, .resync_to_restart = library->jpeg_resync_to_restart, .term_source = ignore,
    };
    struct jpeg_decompress_struct info = {.err = library->jpeg_std_error(&errors), .client_data = &attempt};
    errors.error_exit = fail_trial;
    sf_create_decompress(library, &info);
    info.src = &source;
    decode_counting(library, &info, line);
    library->jpeg_destroy_decompress(&info);
    return attempt.mcus == 3;
}

struct sf_library *sf_library_open(const char *path, char message[SF_MESSAGE_BYTES]) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(message, SF_MESSAGE_BYTES, "%s", dlerror());
        return NULL;
    }
    struct sf_library *library = calloc(1, sizeof *library);
    if (!library) {
        snprintf(message, SF_MESSAGE_BYTES, "out of memory");
        dlclose(handle);
        return NULL;
    }
    const char *missing = NULL;
#define SF_BIND(returned, name, arguments)                   \
    *(void **)&library->name = dlsym(handle, #name);         \
    if (!library->name) missing = #name;
    SF_LIBJPEG_FUNCTIONS(SF_BIND)
#undef SF_BIND
    if (missing) snprintf(message, SF_MESSAGE_BYTES, "it has no %s, which libjpeg-turbo has since 1.5", missing);
    if (missing || !choose_layout(library, message)) {
        free(library);
        dlclose(handle);
        return NULL;
    }
    Dl_info where;
    int known = dladdr(*(void **)&library->jpeg_read_header, &where) != 0;
    snprintf(message, SF_MESSAGE_BYTES, "%s", known ? where.dli_fname : path);
    return library;
}

int32_t sf_library_know_layout(struct sf_library *library) {
    library->asks_for_mcus = asks_for_mcus(library);
    return library->asks_for_mcus;
}

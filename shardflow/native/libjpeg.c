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
} trial;

static void fail_trial(j_common_ptr info) {
    trial *attempt = info->client_data;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    snprintf(attempt->message, SF_MESSAGE_BYTES, "%s", text);
    longjmp(attempt->escape, 1);
}

/* jpeg_CreateDecompress compares version and size with those of the library before it touches the structure. This guards
 * against a library with another layout. */
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

sf_coding sf_coding_of(const struct sf_library *library, const struct jpeg_decompress_struct *info) {
#define SF_CODING(later)                                                                                          \
    (sf_coding) {                                                                                                 \
        .progressive = later.progressive_mode, .arithmetic = later.arith_code, .comps_in_scan = later.comps_in_scan, \
        .Ss = later.Ss, .Se = later.Se, .unread_marker = later.unread_marker,                                     \
    }
    if (library->api == 62) return SF_CODING(info->later.api62);
    return SF_CODING(info->later.api80);
#undef SF_CODING
}

sf_shape sf_shape_of(const struct sf_library *library, const struct jpeg_decompress_struct *info) {
    sf_shape shape = {
        .width = (int32_t)info->image_width, .height = (int32_t)info->image_height, .count = info->num_components,
    };
    const sf_component62 *const c62 = info->comp_info;
    const sf_component80 *const c80 = info->comp_info;
    for (int i = 0; i < shape.count && i < PLANES; i++) {
        shape.h[i] = library->api == 62 ? c62[i].h_samp_factor : c80[i].h_samp_factor;
        shape.v[i] = library->api == 62 ? c62[i].v_samp_factor : c80[i].v_samp_factor;
        if (shape.h[i] > shape.max_h) shape.max_h = shape.h[i];
        if (shape.v[i] > shape.max_v) shape.max_v = shape.v[i];
    }
    return shape;
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

#define _GNU_SOURCE /* dladdr */

#include "libjpeg.h"

#include <dlfcn.h>
#include <setjmp.h>
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

/* jpeg_CreateDecompress compares the interface version and the size of its structure with those this file was compiled
 * with, before it touches the structure: the guard against a library with another layout. */
static int has_our_layout(const struct sf_library *library, char *message) {
    trial attempt = {.message = message};
    struct jpeg_error_mgr errors;
    struct jpeg_decompress_struct info = {.err = library->jpeg_std_error(&errors), .client_data = &attempt};
    errors.error_exit = fail_trial;
    if (setjmp(attempt.escape)) return 0;
    library->jpeg_CreateDecompress(&info, JPEG_LIB_VERSION, sizeof info);
    library->jpeg_destroy_decompress(&info);
    return 1;
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
#define SF_BIND(name)                                        \
    *(void **)&library->name = dlsym(handle, #name);         \
    if (!library->name) missing = #name;
    SF_LIBJPEG_FUNCTIONS(SF_BIND)
#undef SF_BIND
    if (missing) snprintf(message, SF_MESSAGE_BYTES, "it has no %s", missing);
    if (missing || !has_our_layout(library, message)) {
        free(library);
        dlclose(handle);
        return NULL;
    }
    Dl_info where;
    int known = dladdr(*(void **)&library->jpeg_read_header, &where) != 0;
    snprintf(message, SF_MESSAGE_BYTES, "%s", known ? where.dli_fname : path);
    return library;
}

/* The functions of libjpeg-turbo that the kernel calls, bound at run time.
 *
 * Why not at link time: nearly every installation already holds a libjpeg-turbo inside Pillow's wheel, whose file name
 * carries a hash that no linker can know, while the system's may be missing. Calling through a table also keeps the
 * kernel's calls inside the library it checked, where global symbol lookup could bind them to any other libjpeg that
 * the process has loaded.
 */
#ifndef SHARDFLOW_LIBJPEG_H
#define SHARDFLOW_LIBJPEG_H

#include <stdio.h> /* jpeglib.h needs FILE */

#include <jpeglib.h>

#ifndef LIBJPEG_TURBO_VERSION
#error "the headers are not libjpeg-turbo's: the kernel needs its partial decoding and its RGBX output"
#endif

#define SF_LIBJPEG_FUNCTIONS(F) \
    F(jpeg_std_error)           \
    F(jpeg_CreateDecompress)    \
    F(jpeg_abort_decompress)    \
    F(jpeg_destroy_decompress)  \
    F(jpeg_read_header)         \
    F(jpeg_start_decompress)    \
    F(jpeg_crop_scanline)       \
    F(jpeg_skip_scanlines)      \
    F(jpeg_read_scanlines)      \
    F(jpeg_resync_to_restart)

struct sf_library {
    /* Whether it asks for each MCU through the pointer in its private structure that is declared below. */
    int asks_for_mcus;
#define SF_DECLARE(name) __typeof__(name) *name;
    SF_LIBJPEG_FUNCTIONS(SF_DECLARE)
#undef SF_DECLARE
};

/* How the private structure begins, in every version so far. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr info);
    boolean (*decode_mcu)(j_decompress_ptr info, JBLOCKROW *into);
};

#endif

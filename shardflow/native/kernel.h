/* The native hot paths: JPEG bytes in, resized RGB pixels in the caller's buffer out; and JPEG bytes in, smaller ones out.
 *
 * A workspace belongs to one thread at a time; any number of workspaces may run at once: they share no writable memory.
 * No state that affects pixels is kept between images, so an image's pixels depend only on its bytes. For any bytes of an
 * image, no function crashes or writes outside the given buffers. Only sf_decode may block, when it reads files.
 */
#ifndef SHARDFLOW_KERNEL_H
#define SHARDFLOW_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define SF_API __attribute__((visibility("default")))

/* Raised with every change of the structures below: the Python side refuses a binary built from other sources. */
#define SF_ABI 14

enum { SF_MESSAGE_BYTES = 240 };

/* The result of an image. Besides OK, only DAMAGED has pixels: libjpeg-turbo continued after a warning. */
enum sf_status {
    SF_OK = 0,
    SF_DAMAGED = 1,     /* corrupt data, decoded by libjpeg-turbo with warnings; has pixels */
    SF_CORRUPT = 2,     /* not a JPEG, or one that cannot be decoded */
    SF_TRUNCATED = 3,   /* the bytes end before the image does */
    SF_UNSUPPORTED = 4, /* well-formed as far as read, but needs another decoder: CMYK, 12 bits, arithmetic coding */
    SF_TOO_LARGE = 5,   /* more pixels, scans or working memory than allowed */
    SF_BAD_BOX = 6,     /* the crop is not inside the image, or the window is not inside the resized crop */
    SF_NO_MEMORY = 7,
    SF_WRONG_SIZE = 8,  /* the image does not have the size that the caller expected */
    SF_UNREAD = 9,      /* its file cannot be read, or a CRC-32 differs: the caller reads the file and reports the error */
};

/* How JPEGs are decoded: by libjpeg-turbo only; by the kernel in plain C if it can; or by the kernel with vectors. */
enum sf_way { SF_BY_LIBRARY = 0, SF_PLAIN = 1, SF_FAST = 2 };

enum sf_filter { SF_TRIANGLE = 0, SF_BICUBIC = 1, SF_LANCZOS3 = 2 };

typedef struct sf_library sf_library; /* one loaded libjpeg-turbo; lives as long as the process */
typedef struct sf_workspace sf_workspace; /* working memory of one thread */

typedef struct {
    int32_t width, height, components;
    int32_t progressive;
} sf_header;

/* The limits of an image, checked before anything is allocated for it. With one scan only `pixels` counts. */
typedef struct {
    int64_t pixels;
    int64_t memory_bytes; /* of an image in several scans, whose coefficients are kept from one to the next */
    int64_t scan_pixels;  /* pixels times scans */
    int64_t scans;
} sf_limits;

/* An image in a file. The `bytes` from `begin` on hold the image, and may hold other parts of its sample. */
typedef struct {
    int64_t descriptor, begin, bytes; /* 0 bytes: the image is not in a file */
    int64_t first_part, parts;        /* its parts in the batch, including the image: all are checked */
} sf_file;

typedef struct {
    int64_t copy; /* the address to copy the part to; 0: the part is the image */
    int64_t offset, size, crc32;
} sf_part;

/* Image i is encoded or, if `decoded` has its size, RGB pixels row by row. It is cropped to boxes[i] = (x, y, width,
 * height), and the crop is resized to resized[i] = (width, height, left, top). The window of batch width x height pixels
 * at (left, top) is written, mirrored if flips[i] is not zero. Without `boxes` crops are whole images; without `resized`
 * they are resized to the batch's width and height. An image whose size differs from `expected` is SF_WRONG_SIZE: its box
 * was chosen for another image. With `places`, images have different sizes; with `patch`, each is written as squares of
 * that side, which divides its width and height: row after row of squares, each like an image. */
typedef struct {
    const uint8_t *const *images;
    const size_t *sizes;
    const int32_t *boxes;   /* may be NULL */
    const int32_t *resized; /* may be NULL */
    const int32_t *decoded; /* [count][2] width and height of images that are pixels, 0 for encoded ones; may be NULL */
    const int32_t *expected; /* [count][2] expected width and height, 0 where not known; may be NULL */
    const uint8_t *seek_tables; /* [count] whether an image's seek table, if any, may be used; NULL: none may */
    const sf_file *files;  /* [count]; may be NULL */
    const sf_part *parts;
    const uint8_t *flips;
    const int64_t *places; /* [count][3] where an image begins in `out`, its width and its height; may be NULL */
    uint8_t *out;
    size_t image_stride;   /* bytes between the first bytes of neighbouring images in `out` */
    sf_limits limits;      /* of an encoded image */
    int32_t count;
    int32_t width, height;
    int32_t patch;         /* 0: no squares */
    int32_t interleaved;   /* 0: three planes of height x width; 1: height x width x RGB */
    int32_t filter;        /* enum sf_filter */
    int32_t oversampling;  /* 0: decode at full scale; n: at 1/2, 1/4 or 1/8 if n times the target's size is left */
} sf_batch;

/* A JPEG to transcode in its own colours: it is resized and turned upright, and a window of the result is encoded. */
typedef struct {
    const uint8_t *image;
    size_t size;
    sf_limits limits;
    int32_t stored[2];    /* width and height of the image; another size is SF_WRONG_SIZE */
    int32_t resized[2];   /* its width and height after the resize, before turning */
    int32_t orientation;  /* 1 ... 8, as in EXIF */
    int32_t window[4];    /* left, top, width and height in the upright image */
    int32_t filter, oversampling; /* as in a batch */
    int32_t quality;      /* 1 ... 100 */
    int32_t sampling[2];  /* samples of luma per sample of chroma, across and down: 1 or 2 */
    int32_t with_seek_table; /* write one, if the image can have one */
} sf_transcoding;

typedef struct {
    const uint8_t *image; /* belongs to the workspace; valid until its next use */
    size_t size;
    /* Over the encoded pixels as RGB, each with the chroma that it shares. */
    int64_t sums[3], squares[3];
} sf_transcoded;

enum { SF_MATRIX_BITS = 14, SF_LIGHT_LEVELS = 1 << 15 };

/* RGB in another space to sRGB: `linear` light below SF_LIGHT_LEVELS, times a matrix of 1/2^SF_MATRIX_BITS whose rows
 * have sums of magnitudes below 4, to 8 bits. */
typedef struct {
    uint16_t linear[3][256];
    int32_t matrix[3][3];
    uint8_t encoded[SF_LIGHT_LEVELS];
} sf_colour_tables;

typedef struct {
    int32_t index;
    int32_t status;
    char message[SF_MESSAGE_BYTES];
} sf_problem;

SF_API int32_t sf_abi(void);

/* The CRC-32 of zlib; with SF_FAST, by the processor's instructions for it. */
SF_API uint32_t sf_crc32(const uint8_t *data, size_t size, enum sf_way way);

/* Convert `count` RGB pixels in place. */
SF_API void sf_convert_colours(uint8_t *pixels, size_t count, const sf_colour_tables *tables);

/* Load libjpeg-turbo from `path`. Returns NULL, with the reason in `message`, if this build cannot use the library.
 * On success `message` is the name of the loaded file. */
SF_API sf_library *sf_library_open(const char *path, char message[SF_MESSAGE_BYTES]);

/* NULL: not enough memory. Pixels and problems do not depend on `way`, except if coefficients overflow (idct.h). */
SF_API sf_workspace *sf_workspace_new(const sf_library *library, enum sf_way way);
SF_API void sf_workspace_free(sf_workspace *workspace);
SF_API const char *sf_workspace_about(const sf_workspace *workspace);

/* How many images libjpeg-turbo has decoded again, after a fault in their Huffman codes. */
SF_API int64_t sf_workspace_faults(const sf_workspace *workspace);

/* Decode one or several views of each image: batches with the same images, sizes, files, decoded, expected, seek_tables,
 * limits and count. With several views, an image is decoded once at full scale, as much of it as all crops need; each view
 * has the pixels that it would have alone. Returns how many images have a problem and describes each in `problems` (room for
 * all images), by ascending index. The pixels of an image with a problem are zero in all views, unless it is SF_DAMAGED. */
SF_API int32_t sf_decode(sf_workspace *workspace, const sf_batch *views, int32_t count, sf_problem *problems);

/* Transcode an image, grey or YCbCr, to a baseline JPEG. Returns a status; `problem` is filled unless it is SF_OK. */
SF_API int32_t sf_transcode(sf_workspace *workspace, const sf_transcoding *transcoding, sf_transcoded *transcoded,
                            sf_problem *problem);

/* Read the facts of the header. Returns a status; `problem` is filled unless it is SF_OK. */
SF_API int32_t sf_read_header(sf_workspace *workspace, const uint8_t *image, size_t size, sf_header *header,
                              sf_problem *problem);

/* Write the segment with the seek table of an image to `segment`, which has room for SF_SEGMENT_BYTES of seek.h; `bytes` is 0
 * if the image cannot have a table, or only one that is too large. Returns a status, as sf_read_header does. */
SF_API int32_t sf_seek_table_of(sf_workspace *workspace, const uint8_t *image, size_t size, const sf_limits *limits,
                                uint8_t *segment, size_t *bytes, sf_problem *problem);

#endif

/* Antialiased separable resampling of 8-bit RGBX rows in fixed point.
 *
 * The arithmetic is that of PyTorch's uint8 `interpolate(..., antialias=True)`, which follows Pillow's Resample.c:
 * filter support widened by the scale, weights normalised per output and rounded to 16 bits with as many fractional
 * bits as the largest weight leaves, the horizontal pass rounded to 8 bits before the vertical one. On equal input
 * pixels the output is bit-identical.
 */
#ifndef SHARDFLOW_RESAMPLE_H
#define SHARDFLOW_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SF_HAVE_AVX2 1
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define RARE(condition) __builtin_expect(condition, 0)

/* Memory that is reused between images. It grows on request, without keeping its contents. */
typedef struct {
    void *data;
    size_t bytes;
} sf_buffer;

bool sf_reserve(sf_buffer *buffer, size_t bytes); /* false: more than an image may use, or out of memory */
bool sf_extend(sf_buffer *buffer, size_t kept, size_t bytes); /* the same, but the first `kept` bytes stay */
void sf_release(sf_buffer *buffer);
void sf_trim(sf_buffer *buffer); /* memory of a giant image is not kept for the next */

/* One axis of a resize: `length` input pixels from `origin` on become `resized` pixels, of which `count` from `first` on
 * are made, in reverse order if `mirrored`. Each `shared` neighbours of these, in that order, share an output, their mean;
 * the last output may have fewer. Input pixels outside [low, high) have no weight. With `halves`, there is one sample for
 * every two input pixels, and the weights are those of samples, as if these were upsampled first: three parts of the
 * nearer sample and one of the next, which is libjpeg's "fancy" upsampling. */
typedef struct {
    int filter;
    double origin, length;
    int32_t low, high;
    int32_t resized, first, count, shared;
    bool mirrored, halves;
} sf_span;

/* The weights of one axis. Every output has the same even number of taps, padded with zero weights: a data-dependent
 * loop length would be mispredicted for each row, because the entropy decoder evicts the branch history between rows. */
typedef struct {
    int32_t count, taps, precision; /* of outputs; weights have `precision` fractional bits */
    int32_t low, high;              /* input pixels, or samples, [low, high) have weight */
    int32_t *starts;                /* [count] the first tap's pixel, from `low`; starts + taps may pass `high` */
    int16_t *weights;               /* [count][taps] */
    int32_t *packed;                /* the weights as the AVX2 loop reads them, or NULL */
    sf_buffer memory, scratch, packed_memory;
} sf_axis;

bool sf_axis_set(sf_axis *axis, const sf_span *span, bool packed);
void sf_axis_release(sf_axis *axis);

/* Rows are made in blocks of SF_BLOCK pixels, or bytes in the vertical pass; buffers are rounded up to blocks. */
enum { SF_BLOCK = 32 };

typedef struct {
    const char *name;
    bool packed; /* whether `horizontal` reads sf_axis.packed */
    /* One RGBX row to one resampled RGBX row, all four channels. `row` begins with pixel `low`, and is read up to taps + 4
     * pixels beyond `high`. Whole blocks are written. */
    void (*horizontal)(const sf_axis *axis, const uint8_t *row, uint8_t *out);
    /* RGBX to three planes that are `plane` bytes apart, or to RGB. Whole blocks are read and written. */
    void (*split)(const uint8_t *row, int width, size_t plane, uint8_t *out);
    void (*squeeze)(const uint8_t *row, int width, uint8_t *out);
    /* The weighted sum of `taps` rows. Whole blocks are read, exactly `bytes` written. */
    void (*vertical)(const uint8_t *const *rows, size_t at, const int16_t *weights, int taps, int precision,
                     size_t bytes, uint8_t *out);
    /* The values that chroma adds to luma in RGB, as in libjpeg; and the sum of the resulting values and of their squares. */
    void (*tint)(const uint8_t *cb, const uint8_t *cr, int count, int16_t *red, int16_t *green, int16_t *blue);
    void (*sum)(const uint8_t *luma, const int16_t *tints, int count, uint32_t sums[2]);
} sf_loops;

const sf_loops *sf_loops_choose(bool simd);

bool sf_has_avx2(void); /* whether the processor and the build have AVX2 */

#endif

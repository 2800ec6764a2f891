#include <string.h>

#include "workspace.h"

static void check(sf_decoder *d, const sf_transcoding *t) {
    if (t->stored[0] != d->shape.width || t->stored[1] != d->shape.height) {
        FAIL(d, SF_WRONG_SIZE, "the image has %d x %d pixels, expected were %d x %d", d->shape.width, d->shape.height,
             t->stored[0], t->stored[1]);
    }
    const bool transposed = t->orientation >= 5;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t resized = t->resized[transposed ? 1 - axis : axis];
        const int64_t first = t->window[axis], count = t->window[2 + axis];
        if (resized > MAX_DIMENSION || first < 0 || count < 1 || first + count > resized) {
            FAIL(d, SF_BAD_BOX, "the window of %d x %d at (%d, %d) is not inside the upright image", t->window[2],
                 t->window[3], t->window[0], t->window[1]);
        }
    }
}

/* ---- sums over the pixels, as RGB ---- */

enum { RUN = 1024 }; /* pixels per 32-bit sum */

/* Repeat each sample for the two pixels that share it. */
static void repeat(const int16_t *samples, int32_t count, int16_t *restrict pixels) {
    for (int32_t i = 0; i < count; i++) pixels[2 * i] = pixels[2 * i + 1] = samples[i];
}

static void sum_up(const sf_loops *loops, const sf_plane planes[PLANES], const int32_t sampling[2],
                   sf_transcoded *into) {
    int16_t shared[3][RUN], repeated[3][2 * RUN];
    for (int32_t first = 0; first < planes[0].width; first += RUN) {
        const int32_t left = planes[0].width - first, count = left < RUN ? left : RUN;
        const int32_t samples = (count + sampling[0] - 1) / sampling[0];
        for (int32_t y = 0; y < planes[0].height; y++) {
            const uint8_t *rows[PLANES];
            for (int i = 0; i < PLANES; i++) {
                const int32_t at = i ? y / sampling[1] : y, from = i ? first / sampling[0] : first;
                rows[i] = planes[i].rows + planes[i].row_bytes * (size_t)at + from;
            }
            if (y % sampling[1] == 0) {
                loops->tint(rows[1], rows[2], samples, shared[0], shared[1], shared[2]);
                for (int c = 0; c < 3 && sampling[0] == 2; c++) repeat(shared[c], samples, repeated[c]);
            }
            for (int c = 0; c < 3; c++) {
                uint32_t sums[2];
                loops->sum(rows[0], sampling[0] == 2 ? repeated[c] : shared[c], count, sums);
                into->sums[c] += sums[0];
                into->squares[c] += sums[1];
            }
        }
    }
}

static void transcode(sf_transcoder *transcoder, sf_decoder *d, const sf_transcoding *t, sf_transcoded *transcoded) {
    sf_plane planes[PLANES];
    sf_open_image(d, t->image, t->size);
    check(d, t);
    sf_planes_make(&transcoder->planes, d, t, planes);
    if (d->problem->status != SF_OK) return; /* damaged */
    sf_encoder *const encoder = &transcoder->encoder;
    transcoded->size = sf_encode(encoder, planes, t->quality, t->sampling, t->with_seek_table != 0, &transcoded->image);
    sf_need(d, transcoded->size > 0);
    sum_up(d->loops, planes, t->sampling, transcoded);
}

/* A fault in the Huffman codes is not retried: the caller has another way to pack images that are damaged or not plain. */
int32_t sf_transcode(sf_workspace *w, const sf_transcoding *t, sf_transcoded *transcoded, sf_problem *problem) {
    *transcoded = (sf_transcoded){0};
    sf_encoder_trim(&w->transcoder.encoder); /* the bytes of the previous image are no longer needed */
    sf_prepare(&w->decoder, &t->limits, problem);
    if (!setjmp(w->decoder.escape)) transcode(&w->transcoder, &w->decoder, t, transcoded);
    sf_close_image(&w->decoder);
    sf_planes_trim(&w->transcoder.planes);
    sf_decoder_trim(&w->decoder);
    return problem->status;
}

#include "scan.h"

#include <string.h>

static void set_steps(const sf_jpeg *jpeg, int component, int16_t steps[DCTSIZE2]) {
    static const uint8_t places[DCTSIZE2] = {SF_ZIGZAG};
    const uint8_t *const from = jpeg->steps[component];
    for (int k = 0; k < DCTSIZE2; k++) {
        steps[places[k]] = (int16_t)(jpeg->wide_steps[component] ? from[2 * k] << 8 | from[2 * k + 1] : from[k]);
    }
}

/* Set where the blocks of a component go. Divide here, once per image: divisions by variable numbers are slow. */
static void set_targets(sf_scan *s, const sf_jpeg *jpeg, int component, int samples) {
    const int h = jpeg->mcu_h[component], v = jpeg->mcu_v[component];
    const sf_samples *const plane = &s->samples[component];
    for (int i = 0; i < h * v; i++) {
        const size_t x = (size_t)(i % h), y = (size_t)(i / h);
        s->targets[s->count++] = (sf_target){
            .steps = s->steps[component], .samples = samples,
            .out = plane->rows + (size_t)samples * (y * plane->stride + x), .stride = plane->stride,
            .column = (size_t)plane->columns, .slot = (size_t)plane->lines * plane->stride,
        };
    }
}

bool sf_scan_start(sf_scan *s, sf_entropy *entropy, const sf_jpeg *jpeg, int32_t reduction, sf_window window,
                   int32_t slots) {
    const sf_shape *const shape = &jpeg->shape;
    const size_t columns = (size_t)(window.right - window.left);
    size_t offset = 0, offsets[PLANES];
    int samples[PLANES];
    s->entropy = entropy;
    s->window = window;
    s->columns = jpeg->columns;
    s->rows = jpeg->rows;
    s->slots = slots;
    s->count = s->next_row = 0;
    for (int i = 0; i < shape->count; i++) {
        samples[i] = sf_samples_of_block(shape, i, reduction);
        s->samples[i] = (sf_samples){
            .width = sf_divide_up(shape->width * shape->h[i] * samples[i], shape->max_h * DCTSIZE),
            .height = sf_divide_up(shape->height * shape->v[i] * samples[i], shape->max_v * DCTSIZE),
            .columns = jpeg->mcu_h[i] * samples[i],
            .lines = jpeg->mcu_v[i] * samples[i],
        };
        s->samples[i].stride = columns * (size_t)s->samples[i].columns;
        offsets[i] = offset;
        offset += s->samples[i].stride * (size_t)(slots * s->samples[i].lines) + 2 * SF_LINE;
    }
    if (!sf_reserve(&s->memory, offset)) return false;
    for (int i = 0; i < shape->count; i++) {
        s->samples[i].rows = (uint8_t *)s->memory.data + offsets[i];
        set_steps(jpeg, i, s->steps[i]);
        set_targets(s, jpeg, i, samples[i]);
    }
    memset(s->blocks, 0, sizeof s->blocks);
    return true;
}

bool sf_scan_next(sf_scan *s) {
    const sf_window window = s->window;
    const int32_t row = s->next_row++, slot = row % s->slots;
    const bool is_wanted = row >= window.top && row < window.bottom;
    int decoded = 0; /* MCUs that wait for the transform */
    for (int32_t column = 0; column < s->columns; column++) {
        const bool wanted = is_wanted && column >= window.left && column < window.right;
        if (!sf_entropy_decode(s->entropy, wanted ? s->blocks + decoded * s->count : NULL)) return false;
        if (!wanted || (++decoded < 2 && column + 1 < window.right)) continue;
        s->idct(s->targets, s->count, column + 1 - decoded - window.left, slot, decoded, s->blocks);
        decoded = 0;
    }
    return true;
}

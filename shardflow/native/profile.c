#include "kernel.h"

/* Each channel to linear light, a matrix, and each channel back: the same integers as `_colour` without the kernel. */
void sf_convert_colours(uint8_t *pixels, size_t count, const sf_colour_tables *tables) {
    for (; count; count--, pixels += 3) {
        int32_t light[3];
        for (int i = 0; i < 3; i++) light[i] = tables->linear[i][pixels[i]];
        for (int i = 0; i < 3; i++) {
            const int32_t *const row = tables->matrix[i];
            const int32_t sum = row[0] * light[0] + row[1] * light[1] + row[2] * light[2];
            const int32_t place = (sum + (1 << (SF_MATRIX_BITS - 1))) >> SF_MATRIX_BITS;
            pixels[i] = tables->encoded[place < 0 ? 0 : place >= SF_LIGHT_LEVELS ? SF_LIGHT_LEVELS - 1 : place];
        }
    }
}

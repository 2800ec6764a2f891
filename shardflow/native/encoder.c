#include "encoder.h"

#include "decoder.h"

enum { FIRST_BYTES = 1 << 16 };

/* ---- destination: the bytes of the encoder ---- */

static void on_start(j_compress_ptr info) {
    sf_decoder *d = info->client_data;
    sf_encoder *const e = &d->encoder;
    sf_need(d, sf_reserve(&e->bytes, FIRST_BYTES));
    e->destination.next_output_byte = e->bytes.data;
    e->destination.free_in_buffer = FIRST_BYTES;
}

/* All of the buffer is full now, whatever its pointers say: jpeglib.h wants it so. */
static boolean on_full(j_compress_ptr info) {
    sf_decoder *d = info->client_data;
    sf_encoder *const e = &d->encoder;
    const size_t full = (size_t)(e->destination.next_output_byte - (uint8_t *)e->bytes.data) + e->destination.free_in_buffer;
    sf_need(d, sf_extend(&e->bytes, full, 2 * full));
    e->destination.next_output_byte = (uint8_t *)e->bytes.data + full;
    e->destination.free_in_buffer = full;
    return TRUE;
}

static void on_end(j_compress_ptr info) { (void)info; }

/* ---- public ---- */

static void start(sf_decoder *d, const sf_plane *luma, int32_t quality, const int32_t sampling[2]) {
    sf_encoder *const e = &d->encoder;
    e->info.err = &d->errors;
    e->info.client_data = d;
    if (!e->exists) {
        sf_create_compress(d->jpeg, &e->info);
        e->exists = true;
    }
    e->destination = (struct jpeg_destination_mgr){
        .init_destination = on_start, .empty_output_buffer = on_full, .term_destination = on_end};
    e->info.dest = &e->destination;
    e->info.image_width = (JDIMENSION)luma->width;
    e->info.image_height = (JDIMENSION)luma->height;
    e->info.input_components = SF_PLANES;
    e->info.in_color_space = JCS_YCbCr;
    d->jpeg->jpeg_set_defaults(&e->info);
    d->jpeg->jpeg_set_quality(&e->info, quality, TRUE);
    sf_take_planes(d->jpeg, &e->info, sampling[0], sampling[1]);
    d->jpeg->jpeg_start_compress(&e->info, TRUE);
}

static void write_planes(sf_decoder *d, const sf_plane planes[SF_PLANES], const int32_t sampling[2]) {
    const int32_t lines = DCTSIZE * sampling[1];
    for (int32_t y = 0; y < planes[0].height; y += lines) {
        JSAMPROW rows[SF_PLANES][2 * DCTSIZE];
        JSAMPARRAY starts[SF_PLANES] = {rows[0], rows[1], rows[2]};
        for (int i = 0; i < SF_PLANES; i++) {
            const int32_t count = i ? DCTSIZE : lines, first = i ? y / sampling[1] : y, last = planes[i].height - 1;
            for (int32_t row = 0; row < count; row++) {
                const int32_t at = first + row < last ? first + row : last;
                rows[i][row] = planes[i].rows + planes[i].row_bytes * (size_t)at;
            }
        }
        d->jpeg->jpeg_write_raw_data(&d->encoder.info, starts, (JDIMENSION)lines);
    }
}

size_t sf_encode(sf_decoder *d, const sf_plane planes[SF_PLANES], int32_t quality, const int32_t sampling[2]) {
    sf_encoder *const e = &d->encoder;
    start(d, &planes[0], quality, sampling);
    write_planes(d, planes, sampling);
    d->jpeg->jpeg_finish_compress(&e->info);
    return (size_t)(e->destination.next_output_byte - (uint8_t *)e->bytes.data);
}

void sf_encoder_reset(sf_decoder *d) {
    if (d->encoder.exists) d->jpeg->jpeg_destroy_compress(&d->encoder.info);
    d->encoder.exists = false;
}

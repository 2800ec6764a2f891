/* The part of libjpeg-turbo's interface that the kernel uses, declared here and bound at run time.
 *
 * Why not at link time: nearly every installation has a libjpeg-turbo in Pillow's wheel, whose file name has a hash that a
 * linker cannot know, while the system's may be missing. Calls through a table also reach the library that was checked;
 * global symbol lookup could bind them to any other libjpeg that the process has loaded.
 *
 * Why not from jpeglib.h: libjpeg-turbo is built with one of two layouts of its structures, version 62 of the interface
 * (Pillow, Debian, Fedora) or 80 (torchvision, Ubuntu, conda), and the header describes only the system's layout. This file
 * declares both, so that one binary works with any of these libraries. tests/native/test_layout.py compares them with
 * jpeglib.h.
 */
#ifndef SHARDFLOW_LIBJPEG_H
#define SHARDFLOW_LIBJPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jpeg.h"

/* ---- the declarations, with the names of jpeglib.h ---- */

enum { JMSG_LENGTH_MAX = 200 };

typedef int boolean;
enum { FALSE = 0, TRUE = 1 };

typedef enum { JCS_GRAYSCALE = 1, JCS_RGB = 2, JCS_YCbCr = 3, JCS_EXT_RGBX = 7 } J_COLOR_SPACE;

typedef unsigned int JDIMENSION;
typedef uint8_t UINT8, *JSAMPROW;
typedef JSAMPROW *JSAMPARRAY, **JSAMPIMAGE;
typedef struct jpeg_common_struct *j_common_ptr;
typedef struct jpeg_decompress_struct *j_decompress_ptr;

struct jpeg_error_mgr {
    void (*error_exit)(j_common_ptr info);
    void (*emit_message)(j_common_ptr info, int level);
    void (*output_message)(j_common_ptr info);
    void (*format_message)(j_common_ptr info, char *text);
    void (*reset_error_mgr)(j_common_ptr info);
    int msg_code;
    union {
        int numbers[8];
        char text[80];
    } msg_parm;
    int trace_level;
    long num_warnings;
    const char *const *jpeg_message_table;
    int last_jpeg_message;
    const char *const *addon_message_table;
    int first_addon_message, last_addon_message;
};

struct jpeg_progress_mgr {
    void (*progress_monitor)(j_common_ptr info);
    long pass_counter, pass_limit;
    int completed_passes, total_passes;
};

struct jpeg_source_mgr {
    const uint8_t *next_input_byte;
    size_t bytes_in_buffer;
    void (*init_source)(j_decompress_ptr info);
    boolean (*fill_input_buffer)(j_decompress_ptr info);
    void (*skip_input_data)(j_decompress_ptr info, long bytes);
    boolean (*resync_to_restart)(j_decompress_ptr info, int desired);
    void (*term_source)(j_decompress_ptr info);
};

typedef struct jpeg_component_info jpeg_component_info;

/* A component. Version 80 has two scaled sizes, which libjpeg-turbo keeps equal. */
#define SF_WHOLE_COMPONENT(second_size)                                                                   \
    {                                                                                                     \
        int component_id, component_index, h_samp_factor, v_samp_factor, quant_tbl_no, dc_tbl_no, ac_tbl_no; \
        JDIMENSION width_in_blocks, height_in_blocks;                                                     \
        int DCT_scaled_size;                                                                              \
        second_size                                                                                       \
        JDIMENSION downsampled_width, downsampled_height;                                                 \
        boolean component_needed;                                                                         \
        int MCU_width, MCU_height, MCU_blocks, MCU_sample_width, last_col_width, last_row_height;         \
        void *quant_table, *dct_table;                                                                    \
    }

typedef struct SF_WHOLE_COMPONENT() sf_component62;
typedef struct SF_WHOLE_COMPONENT(int DCT_v_scaled_size;) sf_component80;

#define SF_COMMON_FIELDS               \
    struct jpeg_error_mgr *err;        \
    void *mem;                         \
    struct jpeg_progress_mgr *progress; \
    void *client_data;                 \
    boolean is_decompressor;           \
    int global_state;

struct jpeg_common_struct {
    SF_COMMON_FIELDS
};

/* The fields after `comp_info`; version 80 has fields in three places that version 62 lacks. */
#define SF_LATER_FIELDS(baseline, second_size, block)                                            \
    struct {                                                                                     \
        baseline                                                                                 \
        boolean progressive_mode, arith_code;                                                    \
        UINT8 arith_dc_L[16], arith_dc_U[16], arith_ac_K[16];                                    \
        unsigned int restart_interval;                                                           \
        boolean saw_JFIF_marker;                                                                 \
        UINT8 JFIF_major_version, JFIF_minor_version, density_unit;                              \
        uint16_t X_density, Y_density;                                                           \
        boolean saw_Adobe_marker;                                                                \
        UINT8 Adobe_transform;                                                                   \
        boolean CCIR601_sampling;                                                                \
        void *marker_list;                                                                       \
        int max_h_samp_factor, max_v_samp_factor;                                                \
        int min_DCT_scaled_size;                                                                 \
        second_size                                                                              \
        JDIMENSION total_iMCU_rows;                                                              \
        UINT8 *sample_range_limit;                                                               \
        int comps_in_scan;                                                                       \
        jpeg_component_info *cur_comp_info[MAX_COMPS_IN_SCAN];                                   \
        JDIMENSION MCUs_per_row, MCU_rows_in_scan;                                               \
        int blocks_in_MCU, MCU_membership[MAX_BLOCKS_IN_MCU];                                    \
        int Ss, Se, Ah, Al;                                                                      \
        block                                                                                    \
        int unread_marker;                                                                       \
        void *master, *main, *coef, *post, *inputctl, *marker, *entropy;                         \
        void *idct, *upsample, *cconvert, *cquantize;                                            \
    }

struct jpeg_decompress_struct {
    SF_COMMON_FIELDS
    struct jpeg_source_mgr *src;
    JDIMENSION image_width, image_height;
    int num_components;
    J_COLOR_SPACE jpeg_color_space, out_color_space;
    unsigned int scale_num, scale_denom;
    double output_gamma;
    boolean buffered_image, raw_data_out;
    int dct_method;
    boolean do_fancy_upsampling, do_block_smoothing, quantize_colors;
    int dither_mode;
    boolean two_pass_quantize;
    int desired_number_of_colors;
    boolean enable_1pass_quant, enable_external_quant, enable_2pass_quant;
    JDIMENSION output_width, output_height;
    int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
    JSAMPROW *colormap;
    JDIMENSION output_scanline;
    int input_scan_number;
    JDIMENSION input_iMCU_row;
    int output_scan_number;
    JDIMENSION output_iMCU_row;
    int (*coef_bits)[DCTSIZE2];
    void *quant_tbl_ptrs[NUM_QUANT_TBLS];
    void *dc_huff_tbl_ptrs[NUM_HUFF_TBLS], *ac_huff_tbl_ptrs[NUM_HUFF_TBLS];
    int data_precision;
    void *comp_info; /* elements whose size depends on the version */
    union {
        SF_LATER_FIELDS(, , ) api62;
        SF_LATER_FIELDS(boolean is_baseline;, int min_DCT_v_scaled_size;,
                        int block_size; const int *natural_order; int lim_Se;) api80;
    } later;
};

/* ---- a loaded library ---- */

#define SF_LIBJPEG_FUNCTIONS(F)                                                                        \
    F(struct jpeg_error_mgr *, jpeg_std_error, (struct jpeg_error_mgr * errors))                       \
    F(void, jpeg_CreateDecompress, (j_decompress_ptr info, int api, size_t info_bytes))                \
    F(void, jpeg_abort_decompress, (j_decompress_ptr info))                                            \
    F(void, jpeg_destroy_decompress, (j_decompress_ptr info))                                          \
    F(int, jpeg_read_header, (j_decompress_ptr info, boolean require_image))                           \
    F(boolean, jpeg_start_decompress, (j_decompress_ptr info))                                         \
    F(void, jpeg_crop_scanline, (j_decompress_ptr info, JDIMENSION * column, JDIMENSION * width))      \
    F(JDIMENSION, jpeg_skip_scanlines, (j_decompress_ptr info, JDIMENSION lines))                      \
    F(JDIMENSION, jpeg_read_scanlines, (j_decompress_ptr info, JSAMPROW * rows, JDIMENSION most))      \
    F(JDIMENSION, jpeg_read_raw_data, (j_decompress_ptr info, JSAMPIMAGE planes, JDIMENSION lines))    \
    F(boolean, jpeg_resync_to_restart, (j_decompress_ptr info, int desired))

struct sf_library {
    int api;           /* version of its interface, 62 or 80 */
    size_t info_bytes; /* of its decompressor */
#define SF_DECLARE(returned, name, arguments) returned(*name) arguments;
    SF_LIBJPEG_FUNCTIONS(SF_DECLARE)
#undef SF_DECLARE
};

void sf_create_decompress(const struct sf_library *library, j_decompress_ptr info);

/* The current values of a decompressor's fields that the two versions have in different places. */
typedef struct {
    bool progressive, arithmetic;
    int comps_in_scan, Ss, Se, unread_marker;
} sf_coding;

sf_coding sf_coding_of(const struct sf_library *library, const struct jpeg_decompress_struct *info);

/* The shape of the image whose header was read, with the factors of at most PLANES components. */
sf_shape sf_shape_of(const struct sf_library *library, const struct jpeg_decompress_struct *info);

#endif

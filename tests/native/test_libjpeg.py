"""What the kernel declares of libjpeg-turbo is what libjpeg-turbo declares."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardflow import native

COMMON = "err mem progress client_data is_decompressor global_state"
FIELDS = {
    "jpeg_error_mgr": "error_exit emit_message output_message format_message reset_error_mgr msg_code msg_parm "
    "trace_level num_warnings jpeg_message_table last_jpeg_message addon_message_table first_addon_message "
    "last_addon_message",
    "jpeg_progress_mgr": "progress_monitor pass_counter pass_limit completed_passes total_passes",
    "jpeg_source_mgr": "next_input_byte bytes_in_buffer init_source fill_input_buffer skip_input_data "
    "resync_to_restart term_source",
    "jpeg_common_struct": COMMON,
    "jpeg_decompress_struct": f"{COMMON} src image_width image_height num_components jpeg_color_space out_color_space "
    "scale_num scale_denom output_gamma buffered_image raw_data_out dct_method do_fancy_upsampling do_block_smoothing "
    "quantize_colors dither_mode two_pass_quantize desired_number_of_colors enable_1pass_quant enable_external_quant "
    "enable_2pass_quant output_width output_height out_color_components output_components rec_outbuf_height "
    "actual_number_of_colors colormap output_scanline input_scan_number input_iMCU_row output_scan_number "
    "output_iMCU_row coef_bits quant_tbl_ptrs dc_huff_tbl_ptrs ac_huff_tbl_ptrs data_precision comp_info",
}
LATER = (
    "progressive_mode arith_code arith_dc_L arith_dc_U arith_ac_K restart_interval saw_JFIF_marker JFIF_major_version "
    "JFIF_minor_version density_unit X_density Y_density saw_Adobe_marker Adobe_transform CCIR601_sampling marker_list "
    "max_h_samp_factor max_v_samp_factor total_iMCU_rows sample_range_limit comps_in_scan cur_comp_info MCUs_per_row "
    "MCU_rows_in_scan blocks_in_MCU MCU_membership Ss Se Ah Al unread_marker master main coef post inputctl marker "
    "entropy idct upsample cconvert cquantize"
)
COMPONENT = (
    "component_id component_index quant_tbl_no dc_tbl_no ac_tbl_no h_samp_factor v_samp_factor width_in_blocks "
    "height_in_blocks downsampled_width downsampled_height "
    "component_needed MCU_width last_row_height quant_table dct_table"
)
WHOLE = (
    "jpeg_error_mgr",
    "jpeg_progress_mgr",
    "jpeg_source_mgr",
    "jpeg_common_struct",
)
TYPES = ("boolean", "J_COLOR_SPACE", "JDIMENSION", "UINT8", "JSAMPROW")
CONSTANTS = (
    "DCTSIZE DCTSIZE2 NUM_QUANT_TBLS NUM_HUFF_TBLS MAX_COMPS_IN_SCAN MAX_BLOCKS_IN_MCU "
    "MAX_DIMENSION RST0 EOI JMSG_LENGTH_MAX FALSE TRUE JCS_GRAYSCALE JCS_RGB JCS_YCbCr JCS_EXT_RGBX"
)


@pytest.mark.parametrize("api", [62, 80])
def test_layouts_are_those_of_the_header(api: int, tmp_path: Path) -> None:
    """Every field is where jpeglib.h has it in either version of the interface, and every constant has its value."""
    theirs = f"#include <stdio.h>\n#include <jconfig.h>\n#undef JPEG_LIB_VERSION\n#define JPEG_LIB_VERSION {api}\n"
    theirs += "#define JCONFIG_INCLUDED\n#include <jpeglib.h>\n#include <jerror.h>\n"
    if subprocess.run(["cc", "-E", "-"], input=theirs, text=True, capture_output=True, timeout=60).returncode:
        pytest.skip("no C compiler, or no headers of libjpeg-turbo: apt install gcc libjpeg-dev")
    for name in ("MAX_DIMENSION", "RST0", "EOI"):
        theirs += f"#define {name} JPEG_{name}\n"
    theirs += "#define MAX_BLOCKS_IN_MCU D_MAX_BLOCKS_IN_MCU\n"
    theirs += "#define component jpeg_component_info\n#define component_scaled_size "
    theirs += "DCT_scaled_size\n" if api == 62 else "DCT_h_scaled_size\n"
    ours = f'#include <stdio.h>\n#include "{Path(native.__file__).parent / "libjpeg.h"}"\n'
    ours += f"#define component sf_component{api}\n#define component_scaled_size DCT_scaled_size\n"
    assert _facts(ours, f"later.api{api}.", tmp_path) == _facts(theirs, "", tmp_path)


def _facts(includes: str, later: str, folder: Path) -> dict[str, str]:
    """Return offsets and sizes of fields, sizes of types and values of constants, as the compiler has them."""
    lines = []
    for structure, names in FIELDS.items():
        lines += [_field(f"struct {structure}", name, name) for name in names.split()]
    lines += [_field("struct jpeg_decompress_struct", name, later + name) for name in LATER.split()]
    lines += [_field("component", name, name) for name in (*COMPONENT.split(), "component_scaled_size")]
    lines += ['printf("component: %zu\\n", sizeof(component));']
    sizes = [f"struct {name}" for name in WHOLE]
    lines += [f'printf("{name}: %zu\\n", sizeof({name}));' for name in (*sizes, *TYPES)]
    lines += [f'printf("{name}: %d\\n", (int){name});' for name in CONSTANTS.split()]
    source = folder / "facts.c"
    source.write_text(f"{includes}#include <stddef.h>\nint main(void) {{\n" + "\n".join(lines) + "\n}\n")
    subprocess.run(["cc", "-o", folder / "facts", source], check=True, timeout=60)
    found = subprocess.run([folder / "facts"], check=True, capture_output=True, text=True, timeout=60).stdout
    return dict(line.split(": ") for line in found.splitlines())


def _field(tag: str, name: str, path: str) -> str:
    size = f"sizeof((({tag} *)0)->{path})"
    return f'printf("{tag}.{name}: %zu, %zu bytes\\n", offsetof({tag}, {path}), {size});'

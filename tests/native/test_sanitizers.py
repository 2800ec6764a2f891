"""The native kernel runs its own tests under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import sanitized

HERE = Path(__file__).parent
TESTS = (
    "test_codings.py",
    "test_crc32.py",
    "test_encoder.py",
    "test_entropy.py",
    "test_header.py",
    "test_hostile.py",
    "test_in_files.py",
    "test_seek.py",
    "test_transcoding.py::test_hostile_bytes",
    "test_transcoding.py::test_extreme_shapes",
    "test_transcoding.py::test_odd_codings",
    "test_pixels.py::test_layouts_hold_the_same_pixels",
    "test_pixels.py::test_plain_loops_make_the_same_pixels",
    "test_pixels.py::test_any_crop_of_any_jpeg",
    "test_views.py",
)


@pytest.mark.timeout(600)
def test_nothing_is_read_or_written_out_of_place(tmp_path: Path) -> None:
    """Hostile files, odd codings and all kinds of crops: no access beside a buffer, and no undefined behaviour."""
    environment = sanitized.build(tmp_path)
    if environment is None:
        pytest.skip("needs gcc or clang, with its sanitizers")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.helpers.sanitized", "-p", "no:cacheprovider"]
    command += ["--capture=sys"]  # what a sanitizer writes is shown
    command += [
        "--hypothesis-profile",
        "short",
    ]  # all examples are tried without the sanitizers, which take five times as long
    done = subprocess.run(
        # Its memory grows: the sanitizer keeps what was freed.
        [*command, "-k", "not test_memory_does_not_grow", *(str(HERE / test) for test in TESTS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "skipped" not in done.stdout

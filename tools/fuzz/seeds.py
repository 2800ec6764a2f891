"""Write the corpus that the fuzzer starts from: small JPEGs of every coding, each after 16 bytes that choose a crop.

    python tools/fuzz/seeds.py DIRECTORY

`DIRECTORY/good.jpg` is the image that the others must not change; the corpus is in `DIRECTORY/corpus`. A JPEG that can
have a seek table comes again with it, with several crops that are worth a table; the kernel in DIRECTORY, built as for
the fuzzer, has tables of small images. Prints the libjpeg-turbo that the kernel uses.
"""

from __future__ import annotations

import io
import itertools
import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from shardflow.formats import seek_table
from shardflow.formats.image_limits import MAX_PIXELS
from shardflow.native import binding


def encode(width: int, height: int, mode: str, **how: object) -> bytes:
    """Return a JPEG of shades and noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 5 + c) + np.cos(y / (4 + c)) for c in range(3)], -1)
    pixels = 128 + 50 * waves + np.random.default_rng(0).normal(0, 5, waves.shape)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(buffer, "JPEG", quality=40, **how)
    return buffer.getvalue()


def main(directory: Path) -> None:
    """Write the good image and the corpus."""
    corpus = directory / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    (directory / "good.jpg").write_bytes(encode(33, 21, "RGB"))
    rng = random.Random(0)
    kinds = [
        ("RGB", {"subsampling": subsampling, "progressive": progressive, **more})
        for subsampling, progressive in itertools.product([0, 1, 2], [False, True])
        for more in [{}, {"restart_marker_blocks": 2}]
    ]
    kinds += [("L", {}), ("L", {"progressive": True}), ("CMYK", {})]
    cases = itertools.product(kinds, [(1, 1), (16, 16), (37, 29), (64, 9), (90, 75)])
    kernel = binding.open_kernel(directory, binding.libjpeg_candidates())
    if isinstance(kernel, str):
        sys.exit(kernel)
    decoder = binding.Decoder(kernel)
    for number, ((mode, how), (width, height)) in enumerate(cases):
        jpeg, choice = encode(width, height, mode, **how), rng.randbytes(16)
        (corpus / f"seed{number:03}").write_bytes(choice + jpeg)
        if table := decoder.seek_table(jpeg, binding.Limits(MAX_PIXELS)):
            for copy in range(3):
                # A table is read for a crop alone, of a batch of one, within wide limits: not one of the upper left.
                crop = bytearray(rng.randbytes(16))
                crop[2 + 2 * (copy % 2)] |= 0x80
                crop[13], crop[15] = crop[13] & 0xF8 | 1, crop[15] & 0x83 | 0x60
                (corpus / f"table{number:03}{'abc'[copy]}").write_bytes(bytes(crop) + seek_table.insert(jpeg, table))
    print(kernel.libjpeg)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The fuzzer's corpus leads where it is meant to lead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardflow.native import binding

NATIVE = Path(binding.__file__).parent
FUZZ = NATIVE.parents[1] / "tools/fuzz"
BUILD = ["cc", "-std=c11", "-O0", "-Wno-psabi", "-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION", "-I", NATIVE]

ALL_INPUTS = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most) {
    (void)data;
    (void)most;
    return size;
}

int main(int count, char **arguments) {
    static uint8_t seed[1 << 16], data[1 << 16];
    LLVMFuzzerInitialize(&count, &arguments);
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        const size_t size = file ? fread(seed, 1, sizeof seed, file) : 0;
        if (file) fclose(file);
        for (unsigned random = 14; random < 21; random++) {
            memcpy(data, seed, size);
            LLVMFuzzerTestOneInput(data, LLVMFuzzerCustomMutator(data, size, sizeof data, random));
        }
    }
    return 0;
}
"""


@pytest.mark.skipif(not (shutil.which("cc") and os.uname().sysname == "Linux"), reason="needs a C compiler")
def test_tables_of_the_corpus_are_used(tmp_path: Path) -> None:
    """Seeds that can have a seek table have one, and many are used, also after mutations of the table alone."""
    kernel = binding.load()
    assert isinstance(kernel, binding.Kernel)
    library = tmp_path / "_kernel.so"
    subprocess.run([*BUILD, "-fPIC", "-shared", *NATIVE.glob("*.c"), "-o", library, "-ldl", "-lm"], check=True)
    target = [FUZZ / "fuzz_decode.c", "-x", "c", "-", "-x", "none", library, "-o", tmp_path / "inputs", "-lm"]
    target += [f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*BUILD, *target], input=ALL_INPUTS, text=True, check=True)
    subprocess.run([sys.executable, FUZZ / "seeds.py", tmp_path], check=True)
    corpus = sorted((tmp_path / "corpus").iterdir())
    with_table = [path for path in corpus if path.name.startswith("table")]
    assert len(with_table) > 10
    environment = {**os.environ, "FUZZ_LIBJPEG": kernel.libjpeg, "FUZZ_GOOD": str(tmp_path / "good.jpg")}
    done = subprocess.run([tmp_path / "inputs", *corpus], env=environment, capture_output=True, text=True, check=True)
    counts = re.search(r"seek tables: in (\d+) of (\d+) inputs, read in (\d+), used in (\d+)", done.stderr)
    assert counts
    held, inputs, read, used = map(int, counts.groups())
    assert inputs == 7 * len(corpus)
    assert held >= 7 * len(with_table)
    assert read >= used > held / 3, (read, used, held)

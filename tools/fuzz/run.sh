#!/bin/sh
# Fuzz the native kernel with libFuzzer and the address and undefined-behaviour sanitizers.
#
#   tools/fuzz/run.sh [SECONDS] [LIBJPEG]
#
# Needs clang with compiler-rt (CLANG), and for the seeds a Python with what shardflow needs (PYTHON). LIBJPEG is the library
# to use, by default that of the kernel; one that was built with CFLAGS="-fsanitize=fuzzer-no-link,address" lets the fuzzer
# see into libjpeg-turbo too. The corpus and the inputs that break the kernel stay in WORK
# (default: build/fuzz), so that the next run continues from them.
set -eu

seconds=${1:-600}
libjpeg=${2:-} # a path, or a name for dlopen
case $libjpeg in */*) libjpeg=$(realpath "$libjpeg") ;; esac
here=$(cd "$(dirname "$0")" && pwd)
native=$here/../../shardflow/native
work=${WORK:-$here/../../build/fuzz}

# Which clang defines it differs; without it, images as small as the fuzzer's have no seek tables.
mode=-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION

mkdir -p "$work"
"${CC:-cc}" -std=c11 -O1 -Wno-psabi -fPIC -shared "$mode" "$native"/*.c -o "$work/_kernel.so" -ldl -lm
found=$(PYTHONPATH=$here/../.. "${PYTHON:-python3}" "$here/seeds.py" "$work")
"${CLANG:-clang}" -std=c11 -g -O2 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -DSF_SANITIZED "$mode" \
    -fno-sanitize-recover=undefined -I "$native" \
    "$here/fuzz_decode.c" "$native"/*.c \
    -ldl -lm -o "$work/fuzz_decode"
cd "$work"
FUZZ_LIBJPEG=${libjpeg:-$found} FUZZ_GOOD=$work/good.jpg exec nice -n 15 ./fuzz_decode \
    -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -dict="$here/jpeg.dict" corpus

/* CRC-32 (ITU-T V.42, reflected, as in zlib), with the processor's instructions for it. */
#include "kernel.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SF_HAVE_CLMUL 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#define SF_HAVE_CRC 1
#include <sys/auxv.h>
#endif

enum { STEP = 8 }; /* bytes per table lookup step */

static uint32_t tables[STEP][256]; /* [n][b]: the remainder of byte b followed by n zero bytes */

/* This function and by_instruction continue from a remainder that is not inverted. */
static uint32_t by_tables(uint32_t rest, const uint8_t *at, size_t size) {
    for (; size >= STEP; at += STEP, size -= STEP) {
        uint32_t next = 0;
        for (int i = 0; i < STEP; i++) next ^= tables[STEP - 1 - i][(at[i] ^ (i < 4 ? rest >> 8 * i : 0)) & 255];
        rest = next;
    }
    while (size-- > 0) rest = rest >> 8 ^ tables[0][(rest ^ *at++) & 255];
    return rest;
}

#ifdef SF_HAVE_CLMUL

#define CLMUL __attribute__((target("pclmul,sse4.1")))

/* Move 128 bits of the message ahead, by the distance of the two powers of x, and add the bits there. */
static inline CLMUL __m128i fold(__m128i bits, __m128i powers, __m128i ahead) {
    const __m128i low = _mm_clmulepi64_si128(bits, powers, 0x00), high = _mm_clmulepi64_si128(bits, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), ahead);
}

static inline CLMUL __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

/* Fold the message onto its last 16 whole bytes, first in four lanes, and look up their remainder. Source: Gopal et al.,
 * "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009, with its powers for the reflected CRC-32. */
static CLMUL uint32_t by_instruction(uint32_t rest, const uint8_t *at, size_t size) {
    const __m128i by_64_bytes = _mm_set_epi64x(0x1C6E41596, 0x154442BD4), by_16 = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    if (size < 64) return by_tables(rest, at, size);
    __m128i lanes[4];
    for (int i = 0; i < 4; i++) lanes[i] = load(at + 16 * i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)rest));
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
        for (int i = 0; i < 4; i++) lanes[i] = fold(lanes[i], by_64_bytes, load(at + 16 * i));
    }
    __m128i bits = lanes[0];
    for (int i = 1; i < 4; i++) bits = fold(bits, by_16, lanes[i]);
    for (; size >= 16; at += 16, size -= 16) bits = fold(bits, by_16, load(at));
    uint8_t folded[16];
    _mm_storeu_si128((__m128i *)folded, bits);
    return by_tables(by_tables(0, folded, sizeof folded), at, size);
}

static int has_instruction(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
}

#elif defined(SF_HAVE_CRC)

static uint32_t by_instruction(uint32_t rest, const uint8_t *at, size_t size) {
    for (; size >= STEP; at += STEP, size -= STEP) {
        uint64_t bytes;
        memcpy(&bytes, at, sizeof bytes);
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(rest) : "r"(bytes));
    }
    return by_tables(rest, at, size);
}

static int has_instruction(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#else

static uint32_t by_instruction(uint32_t rest, const uint8_t *at, size_t size) { return by_tables(rest, at, size); }
static int has_instruction(void) { return 0; }

#endif

static uint32_t (*chosen)(uint32_t rest, const uint8_t *at, size_t size) = by_tables;

__attribute__((constructor)) static void prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? 0xEDB88320u : 0);
        tables[0][byte] = rest;
    }
    for (int n = 1; n < STEP; n++) {
        for (int byte = 0; byte < 256; byte++) {
            tables[n][byte] = tables[n - 1][byte] >> 8 ^ tables[0][tables[n - 1][byte] & 255];
        }
    }
    if (has_instruction()) chosen = by_instruction;
}

uint32_t sf_crc32(const uint8_t *data, size_t size, enum sf_way way) {
    return ~(way == SF_FAST ? chosen : by_tables)(~0u, data, size);
}

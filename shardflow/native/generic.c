/* The loops that are written for AVX2 once more, for processors without it. */
#define SF_GENERIC
#include "color.c"
#include "idct.c"

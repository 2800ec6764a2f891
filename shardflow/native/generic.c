/* The loops for AVX2, compiled again for processors without it. */
#define SF_GENERIC
#include "color.c"
#include "idct.c"

/* The row kernels compiled for AVX-512 with instructions that round to 16 bits; the code is in rows_body.h. */
#define ROWS ad_rows_avx512fp16
#include "rows/rows_body.h"

/* The row kernels compiled for AVX-512; the code is in rows_body.h. */
#define ROWS ad_rows_avx512
#include "rows/rows_body.h"

/* The row kernels compiled for AVX2; the code is in rows_body.h. */
#define ROWS ad_rows_avx2
#include "rows/rows_body.h"

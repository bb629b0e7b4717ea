/* The row kernels compiled for plain C; the code is in rows_body.h. */
#define ROWS ad_rows_plain
#include "rows/rows_body.h"

/* The row kernels compiled for plain C; the code is in rows_body.h. */
#define ROWS ad_rows_plain
#include "tensor/rows_body.h"

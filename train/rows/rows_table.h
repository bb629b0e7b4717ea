/* The table of each variant of the row kernels: the functions in rows.h for each dtype. */
#ifndef ROWS_ROWS_TABLE_H
#define ROWS_ROWS_TABLE_H
#include "rows/rows.h"

typedef struct row_table {
  const row_kernels *f32, *f64, *bf16;
} row_table;

extern const row_table ad_rows_plain, ad_rows_avx2, ad_rows_avx512, ad_rows_avx512fp16;

#endif

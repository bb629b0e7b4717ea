/* Transposed copies of parts of matrices that lie in files. */
#ifndef ARCHITECTURE_TRANSPOSE_H
#define ARCHITECTURE_TRANSPOSE_H
#include "addend/dtype.h"
#include "addend/layout.h"

/* A block of a matrix, `rows` by `columns` elements. */
typedef struct ad_transposed_block {
  const char *from; /* address of the first element, which need not be aligned for the dtype */
  int64_t from_row; /* elements from one row to the next */
  char *to;         /* the first element of the transposed block, [columns, rows] */
  int64_t to_row;
  int64_t rows, columns; /* size of the block `from` */
} ad_transposed_block;

/* Writes to[j][i] = from[i][j], converted, one tile at a time, so that both are read and written in whole cache lines.
 */
void ad_transpose_block(const ad_transposed_block *block, ad_dtype from, ad_dtype to);

#endif

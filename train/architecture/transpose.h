/* Transposed copies of blocks of matrices that are in files. */
#ifndef ARCHITECTURE_TRANSPOSE_H
#define ARCHITECTURE_TRANSPOSE_H
#include "addend/dtype.h"
#include "addend/layout.h"

/* A block of a matrix, `rows` by `columns` elements. */
typedef struct ad_transposed_block {
  const char *from; /* address of the first element; need not be aligned */
  int64_t from_row; /* number of elements between the beginnings of two rows */
  char *to;         /* the first element of the transposed block, [columns, rows] */
  int64_t to_row;
  int64_t rows, columns; /* rows and columns of the block in the file */
} ad_transposed_block;

/* Writes from[i][j], converted, to to[j][i] for all i and j. Works tile by tile, so that whole cache lines are read and
 * written. */
void ad_transpose_block(const ad_transposed_block *block, ad_dtype from, ad_dtype to);

#endif

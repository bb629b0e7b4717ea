/* The matrices that one [rows, cols] of a parameter consists of: itself, or the matrices that are fused in it. */
#ifndef OPTIM_PIECES_H
#define OPTIM_PIECES_H
#include "optim/record.h"

/* AD_INVALID, with the optimizer's and the parameter's name, unless a parameter of this shape consists of matrices as
 * `matrices` says. */
ad_status ad_matrices_check(const ad_optimizer_record *record, size_t index, const char *name, const ad_shape *shape,
                            const ad_param_matrices *matrices) AD_CHECKED;

/* One of the matrices of a [rows, cols]. */
typedef struct ad_matrix_piece {
  int64_t rows, cols; /* sizes of the matrix */
  int64_t in, out;    /* the same sizes as numbers of features */
} ad_matrix_piece;
int ad_piece_count(const ad_param_matrices *matrices);
ad_matrix_piece ad_piece_at(const ad_param_matrices *matrices, int64_t rows, int64_t cols, int number);
/* Returns 1 if the rows of a piece are contiguous in a [rows, cols], so that it can be worked on where it is; *view is
 * then the piece in `full`. */
int ad_piece_view(const ad_param_matrices *matrices, const ad_whole_matrix *full, int number, ad_whole_matrix *view);
/* Copies a piece out of `full` to the contiguous memory at `data`, or with `back` from there to `full`. */
void ad_piece_copy(const ad_param_matrices *matrices, const ad_whole_matrix *full, int number, void *data, int back);

#endif

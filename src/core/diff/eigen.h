/* Eigenvalues and eigenvectors of a symmetric matrix. */
#ifndef DIFF_EIGEN_H
#define DIFF_EIGEN_H
#include <stddef.h>
#include "addend/status.h"

/* matrix: n x n, symmetric; in its place are n orthonormal eigenvectors, one a row. values: n, ascending, the k-th that
 * of row k. Where the matrix has a value that is not finite, all of them are NaN. AD_NUMBER: an eigenvalue is not
 * found; both are then unusable. */
ad_status ad_eigen_solve(double *matrix, size_t n, double *values) AD_CHECKED;

#endif

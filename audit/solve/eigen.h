/* Computes eigenvalues and eigenvectors of a symmetric matrix. */
#ifndef DIFF_EIGEN_H
#define DIFF_EIGEN_H
#include <stddef.h>
#include "addend/status.h"

/* Replaces the symmetric n x n `matrix` by its orthonormal eigenvectors, one a row, and sets values[k] to the
 * eigenvalue of row k, ascending. If the matrix has an element that is not finite, all results are NaN. AD_NUMBER: an
 * eigenvalue was not found; `matrix` and `values` are then unusable. */
ad_status ad_eigen_solve(double *matrix, size_t n, double *values) AD_CHECKED;

#endif

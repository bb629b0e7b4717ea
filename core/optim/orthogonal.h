/* Muon's function of one whole matrix: the Newton-Schulz iteration, after Jordan and others 2024 and as torch.optim.Muon
 * computes it. It replaces a matrix U S V' by nearly U V'. Also the products of a matrix that need no library. */
#ifndef OPTIM_ORTHOGONAL_H
#define OPTIM_ORTHOGONAL_H
#include "optim/record.h"

/* Divides the matrix by its Frobenius norm (or epsilon, if that is larger), takes the steps of the iteration, and writes
 * the result times update->derived[0] over the matrix. `scratch` has ad_orthogonal_scratch bytes and is 64-byte
 * aligned; it has all operands of products, so that the matrix's own alignment changes no bit. AD_NUMBER if the norm is
 * not finite; errors of products. The matrix is unchanged after an error. */
ad_status ad_orthogonalise(const ad_update *update, const ad_whole_matrix *matrix, const ad_optimizer_product *product,
                           void *scratch) AD_CHECKED;
/* Bytes of scratch memory for a matrix of this size whose elements have the dtype `dtype`. */
size_t ad_orthogonal_scratch(const ad_optimizer_options *options, ad_dtype dtype, int64_t rows, int64_t cols);
/* Multiplications and additions of all products. */
double ad_orthogonal_operations(const ad_optimizer_options *options, int64_t rows, int64_t cols);
/* The factor of the learning rate of a matrix with `in` and `out` features. */
double ad_muon_rate_factor(const ad_optimizer_options *options, int64_t in, int64_t out);

/* An ad_optimizer_product in plain loops, right and slow. Products are summed in f64. */
ad_status ad_plain_product(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                           ad_matrix b, int adds, void *c, int64_t c_stride) AD_CHECKED;

#endif

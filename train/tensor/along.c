/* Helpers of operations along one dimension: the sizes of an array before, in and after that dimension, and the letter
 * of the dimension in the operation's rule. */
#include "tensor/along.h"

along ad_along(const ad_array *array, int dim) {
  along of = {1, (size_t)array->local.dim[dim], 1};
  for (int d = 0; d < array->local.ndim; d++) {
    if (d < dim) of.before *= (size_t)array->local.dim[d];
    if (d > dim) of.after *= (size_t)array->local.dim[d];
  }
  return of;
}

ad_status ad_check_dim(const ad_tensor *out, int i, int dim) {
  const ad_shape *shape = &out->operand[i]->array.shape;
  char text[96];
  if (dim >= 0 && dim < shape->ndim) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `%s` was given dimension %d, which operand %d of shape %s does not have; give a dimension of the "
                 "operand, numbered from 0",
                 out->site, out->op->name, dim, i + 1, ad_shape_print(shape, text, sizeof text));
}

char *ad_put_letters(char *to, int ndim, int without) {
  for (int d = 0; d < ndim; d++)
    if (d != without) *to++ = ad_letter_of(d);
  *to = 0;
  return to;
}

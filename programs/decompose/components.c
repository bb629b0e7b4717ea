/* Products with a matrix that masked components replace. */
#include "decompose/components.h"

ad_tensor *ad_masked_product(ad_tape *t, const ad_mask *mask, ad_tensor *x, ad_tensor *w) {
  ad_tensor *h = ad_linear(t, x, mask->v);
  ad_tensor *used = ad_linear(t, ad_multiply(t, h, mask->mask), mask->u);
  ad_tensor *minus_whole = ad_scale(t, ad_linear(t, h, mask->u), -1), *target = ad_linear(t, x, w);
  ad_tensor *rest = ad_add(t, target, minus_whole);
  return ad_add(t, used, ad_scale_rows(t, rest, mask->remains));
}

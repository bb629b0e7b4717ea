/* Components in the place of a product: V, U, and how much of each is used where. */
#ifndef PROGRAM_COMPONENTS_H
#define PROGRAM_COMPONENTS_H
#include "program/decompose/target.h"

/* One site's, on one tape. */
typedef struct ad_mask {
  ad_tensor *v, *u;   /* [in, components], [components, out] */
  ad_tensor *mask;    /* [batch, seq, components] */
  ad_tensor *remains; /* [batch, seq]: how much of what the components do not have */
} ad_mask;
/* ((x V) * mask) U + remains (x W - (x V) U) */
ad_tensor *ad_masked_product(ad_tape *t, const ad_mask *mask, ad_tensor *x, ad_tensor *w);

#endif

/* Components that replace a product with a matrix: V, U, and a mask that says how much of each component is used at
 * each position. */
#ifndef PROGRAM_COMPONENTS_H
#define PROGRAM_COMPONENTS_H
#include "decompose/target.h"

/* The masked components of one site (a replaced product), on one tape. */
typedef struct ad_mask {
  ad_tensor *v, *u;   /* [in, components], [components, out] */
  ad_tensor *mask;    /* [batch, seq, components] */
  ad_tensor *remains; /* [batch, seq]: how much of the remainder W - V U is used */
} ad_mask;
/* Returns ((x V) * mask) U + remains (x W - (x V) U). */
ad_tensor *ad_masked_product(ad_tape *t, const ad_mask *mask, ad_tensor *x, ad_tensor *w);

#endif

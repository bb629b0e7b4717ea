/* Functions on types, layouts and shapes that are not public. */
#ifndef LAYOUT_TYPE_H
#define LAYOUT_TYPE_H
#include "addend/layout.h"
#include "base/internal.h"

enum { AD_TYPE_TEXT_MAX = 24 }; /* memory for a text of ad_type_print */

AD_INTERNAL int ad_type_is_sharded(ad_type type);
AD_INTERNAL int ad_type_dim(ad_type type);      /* the dimension of S(d); -1 for other types */
AD_INTERNAL ad_type ad_type_dual(ad_type type); /* R<->P, I<->I, V<->V, S(d)<->S(d) */
AD_INTERNAL int ad_type_is_zigzag(ad_type type);
AD_INTERNAL ad_type ad_type_sharded_like(ad_type type, int dim); /* sharded along `dim`, zigzag if `type` is zigzag */
/* AD_S(0), as in the transition table, if `type` is any S(d), zigzag or not; otherwise `type` */
ad_type ad_type_kind(ad_type type);
int ad_type_is_known(ad_type type);

/* The axes on which the value is R or I. Ranks that differ only in their position on these axes hold replicas. */
AD_INTERNAL ad_axes ad_layout_same_axes(const ad_layout *layout);

enum { AD_SHAPE_FAULT_MAX = 96 }; /* memory for a text of ad_shape_fault */
/* Returns NULL if the shape is valid; otherwise writes into `buffer` what is wrong with it, and returns buffer. */
const char *ad_shape_fault(const ad_shape *shape, char *buffer, size_t size);

#endif

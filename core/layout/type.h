/* Functions on types and shapes for the library itself, beyond the public ones. */
#ifndef LAYOUT_TYPE_H
#define LAYOUT_TYPE_H
#include "addend/layout.h"
#include "base/internal.h"

enum { AD_TYPE_TEXT_MAX = 24 }; /* room for ad_type_print */

AD_INTERNAL int ad_type_is_zigzag(ad_type type);
AD_INTERNAL ad_type ad_type_sharded_like(ad_type type, int dim); /* the same kind (S or zigzag), along `dim` */
ad_type ad_type_kind(ad_type type); /* AD_S(0) for every S(d), otherwise the type itself, as in the transition table */
int ad_type_is_known(ad_type type);

enum { AD_SHAPE_FAULT_MAX = 96 }; /* room for ad_shape_fault */
/* Returns NULL if a caller's shape is valid; otherwise writes its fault into `buffer` and returns buffer. */
const char *ad_shape_fault(const ad_shape *shape, char *buffer, size_t size);

#endif

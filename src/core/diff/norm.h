/* The global norm that a job reported, against that of its sums. */
#ifndef DIFF_NORM_H
#define DIFF_NORM_H
#include <jansson.h>
#include "diff/part.h"

/* What a parameter adds to the square of the norm. */
typedef struct ad_norm_term {
  double square;   /* of every distinct element once; of a sample, scaled to the whole */
  double variance; /* of that number, where it is estimated from a sample */
  uint32_t copied; /* the axes along which ranks hold copies */
} ad_norm_term;

ad_status ad_norm_measure(const ad_parts *parts, ad_norm_term *out) AD_CHECKED;
/* The document's "norm": null where no file reports one. `terms`: one for each parameter. *holds: it is right. */
json_t *ad_norm_document(const ad_dump *dump, const ad_norm_term *terms, int *holds);

#endif

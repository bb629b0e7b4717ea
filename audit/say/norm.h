/* Compares the global gradient norm that a job reported with the norm of its sums. */
#ifndef DIFF_NORM_H
#define DIFF_NORM_H
#include <jansson.h>
#include "solve/norm_term.h"

/* Returns the value of the document's key "norm"; null if no file reports a norm. `terms` has one element for each
 * parameter. *holds is 1 if the reported norm is right, or if no norm is reported. */
json_t *ad_norm_document(const ad_dump *dump, const ad_norm_term *terms, int *holds);

#endif

/* Prints counts that differ from microbatch to microbatch. */
#ifndef DIFF_MICROBATCHES_H
#define DIFF_MICROBATCHES_H
#include <stddef.h>
#include <stdint.h>

enum { AD_MICROBATCHES_REPORTED = 256 }; /* with more microbatches, counts are not printed one by one */

/* Prints "microbatch 0 counts 1, microbatches 1 and 2 count 1/4": one item for each distinct count. Text that does not
 * fit is truncated. */
void ad_microbatches_print(const double *counts, int64_t microbatches, char *buffer, size_t size);

#endif

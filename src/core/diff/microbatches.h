/* Words for counts that differ from microbatch to microbatch. */
#ifndef DIFF_MICROBATCHES_H
#define DIFF_MICROBATCHES_H
#include <stddef.h>
#include <stdint.h>

enum { AD_MICROBATCHES_TOLD = 256 }; /* of more their counts are not told one by one */

/* "microbatch 0 counts 1, microbatches 1 and 2 count 1/4": one item for each count, longer text is cut. */
void ad_microbatches_print(const double *counts, int64_t microbatches, char *buffer, size_t size);

#endif

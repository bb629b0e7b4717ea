/* Writes files from the first to the last byte, with a checksum. A file has a temporary name (base/unfinished.h) until
 * all of it is on disk. */
#ifndef FILES_OUTPUT_H
#define FILES_OUTPUT_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_output ad_output;

/* Size and checksum of a file that is on disk. */
typedef struct ad_file_sum {
  int64_t bytes;
  uint64_t checksum; /* xxhash64, seed 0 */
} ad_file_sum;

/* Begins a file that will get the name `path` when it is finished; an existing file of that name remains until then.
 * AD_IO. */
AD_INTERNAL AD_CHECKED ad_status ad_output_open(const char *path, ad_output **out);
AD_INTERNAL AD_CHECKED ad_status ad_output_write(ad_output *output, const void *data, size_t bytes);
/* Finishes the file: returns when all of it is on disk under its name. *out (unless NULL) is its size and checksum.
 * After that `output` can only be closed. */
AD_INTERNAL AD_CHECKED ad_status ad_output_sync(ad_output *output, ad_file_sum *out);
/* Frees `output`, and removes a file that was not finished. NULL allowed. */
AD_INTERNAL void ad_output_close(ad_output *output);

/* Reads the file once and compares it with its expected size and checksum. AD_IO names the path and what is wrong: the
 * file is missing, or has another size or another checksum. */
AD_CHECKED ad_status ad_file_verify(const char *path, const ad_file_sum *expected);

#endif

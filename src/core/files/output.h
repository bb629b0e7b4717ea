/* Files that are written from their first byte to their last, with a checksum of all of it, and brought to disk. Until
 * then they have another name (base/unfinished.h). */
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

/* Begins a file that will be called so; what is called so stays until then. AD_IO. */
AD_INTERNAL AD_CHECKED ad_status ad_output_open(const char *path, ad_output **out);
AD_INTERNAL AD_CHECKED ad_status ad_output_write(ad_output *output, const void *data, size_t bytes);
/* Returns when all of it is on disk and has its name; *out may be NULL. `output` can only be closed after that. */
AD_INTERNAL AD_CHECKED ad_status ad_output_sync(ad_output *output, ad_file_sum *out);
/* A file that was not brought to disk is removed. NULL allowed. */
AD_INTERNAL void ad_output_close(ad_output *output);

/* Reads the file once. AD_IO names the path and what differs: missing, another size, another checksum. */
AD_INTERNAL AD_CHECKED ad_status ad_file_verify(const char *path, const ad_file_sum *expected);

#endif

/* All errors in the files of one call, collected so that one error message can name all of them. */
#ifndef DIFF_COMPLAINTS_H
#define DIFF_COMPLAINTS_H
#include "base/error.h"
#include "base/text.h"

/* The final error message lists this many of the collected messages; further ones are only counted. */
enum { AD_COMPLAINTS_SHOWN = 8 };
/* All messages so far. `worst` is the status to return: AD_IO is replaced by any other status, since a file that is
 * wrong matters more than one that cannot be read. */
typedef struct ad_complaints {
  size_t count;
  ad_status worst;
  char words[AD_MESSAGE_MAX];
  size_t used;
} ad_complaints;

/* Adds the last error message if `status` is an error. AD_MEMORY is returned instead of added, so that the caller
 * stops. */
ad_status ad_complaints_add(ad_complaints *complaints, ad_status status) AD_CHECKED;
/* Returns AD_OK if no error was added; else fails with all messages, one a line. */
ad_status ad_complaints_end(const ad_complaints *complaints) AD_CHECKED;

#endif

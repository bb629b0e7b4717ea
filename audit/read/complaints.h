/* Everything that is wrong with the files of one call, collected so that one error message can name all of it. */
#ifndef DIFF_COMPLAINTS_H
#define DIFF_COMPLAINTS_H
#include "base/error.h"
#include "base/text.h"

/* More messages than these are only counted. */
enum { AD_COMPLAINTS_SHOWN = 8 };
/* `worst`: the status to return. Any other status replaces AD_IO: a file that is wrong matters more than one that
 * cannot be read. */
typedef struct ad_complaints {
  size_t count;
  ad_status worst;
  char words[AD_MESSAGE_MAX];
  size_t used;
} ad_complaints;

/* Adds the last error message if `status` is an error. AD_MEMORY is not collected but returned, so that the caller
 * ends. */
ad_status ad_complaints_add(ad_complaints *complaints, ad_status status) AD_CHECKED;
/* Returns AD_OK if nothing was collected; else fails with all messages, one a line. */
ad_status ad_complaints_end(const ad_complaints *complaints) AD_CHECKED;

#endif

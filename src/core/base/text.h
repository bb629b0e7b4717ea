/* Building short texts (layout strings, messages) in fixed buffers; overlong text is cut, never overrun. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_text {
  char *data; /* always ends in 0 */
  size_t size, used;
} ad_text;

AD_INTERNAL ad_text ad_text_on(char *buffer, size_t size);
AD_INTERNAL void ad_text_add(ad_text *text, const char *format, ...) AD_PRINTF(2, 3);

/* Adds one item of a list: `what` stands before the first, ", " before the others, and "..." for those after AD_LISTED.
 * *count, which starts at 0, is how many were added. */
enum { AD_LISTED = 5 };
AD_INTERNAL void ad_text_list(ad_text *text, size_t *count, const char *what, const char *format, ...) AD_PRINTF(4, 5);

#endif

/* Builds short texts (layout strings, messages) in fixed buffers. A text that is too long is
 * truncated, at the end of a character of UTF-8. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_text {
  char *data; /* always ends in 0 */
  size_t size, used;
} ad_text;

/* Returns the ending of a noun after the number `count`: "" or "s". */
static inline const char *ad_plural(long long count) { return count == 1 ? "" : "s"; }

AD_INTERNAL ad_text ad_text_on(char *buffer, size_t size);
AD_INTERNAL void ad_text_add(ad_text *text, const char *format, ...) AD_PRINTF(2, 3);

/* ad_text_list adds one item to a list in a text: it prints `what` before the first item, ", " before each later
 * item, and "..." in place of all items after the first AD_LISTED. *count is the number of items so far; it must be 0
 * at first. */
enum { AD_LISTED = 5 };
AD_INTERNAL void ad_text_list(ad_text *text, size_t *count, const char *what, const char *format, ...) AD_PRINTF(4, 5);

#endif

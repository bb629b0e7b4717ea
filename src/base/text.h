/* Building short texts (layout strings, messages) in fixed buffers; overlong text is cut, never overrun. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stddef.h>
#include "addend/status.h"

typedef struct ad_text {
  char *data; /* always ends in 0 */
  size_t size, used;
} ad_text;

ad_text ad_text_on(char *buffer, size_t size);
void ad_text_add(ad_text *text, const char *format, ...) AD_PRINTF(2, 3);

#endif

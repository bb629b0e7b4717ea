/* Makes texts that come from outside (paths, names in files) safe to print on a terminal. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H
#include <stddef.h>
#include "addend/status.h"

/* Like ad_printable, but keeps line ends, for messages of several lines. */
const char *ad_printable_lines(const char *text, char *buffer, size_t size);
/* Returns the number of bytes of the character at the beginning of `text` if the character controls a terminal, else 0.
 * Such characters are control characters (also U+0080 to U+009F), characters that change the direction of writing
 * (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) and line ends (U+2028, U+2029). If the result is not 0,
 * *code is the character. */
size_t ad_control_at(const char *text, unsigned *code);

#endif

/* Makes texts from outside (paths, names in files) safe for a terminal. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H
#include <stddef.h>
#include "addend/status.h"

/* Like ad_printable, but keeps line ends, for messages of several lines. */
const char *ad_printable_lines(const char *text, char *buffer, size_t size);

#endif

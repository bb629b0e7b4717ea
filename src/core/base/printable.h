/* Texts from outside (paths, names in files) made fit for a terminal. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H
#include <stddef.h>
#include "addend/status.h"

/* As ad_printable, but lines of a message of several stay lines. */
const char *ad_printable_lines(const char *text, char *buffer, size_t size);

#endif

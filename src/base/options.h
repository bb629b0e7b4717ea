/* Taking a caller's options: structs whose first field is their size, so that a program built with an older header,
 * whose struct ends earlier, means the defaults of the fields that it does not know. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H
#include <stddef.h>
#include "addend/status.h"

/* Makes *own, `own_size` bytes, what the caller gave (NULL: all zero); own's size field says own_size afterwards.
 * `what` names the struct. AD_INVALID, *own unchanged, unless the size that was given is that of a struct of this or an
 * earlier library. */
ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) AD_CHECKED;

#endif

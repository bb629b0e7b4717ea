/* Taking a caller's options. Such a struct's first field is its size: a program that was built with an older header has
 * a shorter struct, and the fields that it does not know get their defaults. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* Copies what the caller gave to *own, which has `own_size` bytes; fields that the caller's struct lacks are zero
 * (given NULL: all of them), and own's size field is own_size. `what` is the struct's name. AD_INVALID, *own unchanged,
 * unless the size that was given is that of a struct of this or an earlier library. */
AD_INTERNAL ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) AD_CHECKED;

#endif

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
/* The same of an array of `count` structs, each as large as the first says that it is: *own is an array of the
 * library's own structs, to be freed with ad_release; NULL where count is 0. AD_MEMORY too. */
AD_INTERNAL ad_status ad_options_take_all(void **own, size_t own_size, const void *given, size_t count,
                                          const char *what) AD_CHECKED;
/* A struct of the caller's that a call fills. AD_INVALID, before anything is done, where its size is that of no struct
 * of this or an earlier library. */
ad_status ad_result_check(const void *out, size_t own_size, const char *what) AD_CHECKED;
/* Fills of such a struct what it has; `own` is the library's own. */
void ad_result_give(void *out, const void *own);

#endif

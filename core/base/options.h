/* Copies a caller's options. The first field of every options struct is the struct's size: a program built with an
 * older header has a shorter struct, and fields missing from it get their defaults. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* Copies the caller's options `given` to *own, which has `own_size` bytes. Fields missing from the caller's struct
 * become zero (all fields, if `given` is NULL), and the size field of *own becomes own_size. `what` is the struct's
 * name. AD_INVALID, with *own unchanged, unless the given size is that of the struct in this or an earlier version of
 * the library. */
AD_INTERNAL ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) AD_CHECKED;
/* Like ad_options_take, for an array of `count` structs, which must all have the size of the first one. *own is an
 * array of the library's own structs, NULL if `count` is 0; release it with ad_release. Also AD_MEMORY. */
AD_INTERNAL ad_status ad_options_take_all(void **own, size_t own_size, const void *given, size_t count,
                                          const char *what) AD_CHECKED;
/* Checks a caller's struct that a call will fill, before the call does anything. AD_INVALID unless the struct's size is
 * that of the struct in this or an earlier version of the library. */
ad_status ad_result_check(const void *out, size_t own_size, const char *what) AD_CHECKED;
/* Copies the library's struct `own` to the caller's struct, as much of it as the caller's struct has room for. */
void ad_result_give(void *out, const void *own);

#endif

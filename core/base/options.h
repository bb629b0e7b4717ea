/* Takes a caller's options. The first field of every options struct is its size: a program built with an older header
 * has a shorter struct, and fields missing from it get their defaults. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* Copies the caller's options to *own, which has `own_size` bytes. Fields missing from the caller's struct are zero
 * (all of them if given is NULL), and own's size field becomes own_size. `what` is the struct's name. AD_INVALID, with
 * *own unchanged, unless the given size is that of a struct of this library or an earlier version. */
AD_INTERNAL ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) AD_CHECKED;
/* Like ad_options_take, for an array of `count` structs, which must all have the size of the first. *own is an array of
 * the library's own structs, to be freed with ad_release; NULL if count is 0. AD_MEMORY too. */
AD_INTERNAL ad_status ad_options_take_all(void **own, size_t own_size, const void *given, size_t count,
                                          const char *what) AD_CHECKED;
/* Checks a caller's struct that a call will fill, before the call does anything. AD_INVALID unless its size is the size
 * of the struct in this library or an earlier version. */
ad_status ad_result_check(const void *out, size_t own_size, const char *what) AD_CHECKED;
/* Fills the caller's struct from the library's struct `own`, as far as its size goes. */
void ad_result_give(void *out, const void *own);

#endif

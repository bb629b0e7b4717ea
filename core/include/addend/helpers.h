/* For authors of programs and commands: memory, random numbers and texts, as the libraries themselves use them. Any
 * thread may call these functions at any time. */
#ifndef ADDEND_HELPERS_H
#define ADDEND_HELPERS_H
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- memory ---- */

/* Allocates `count` zeroed elements of the type of **out: double *x; AD_TRY(ad_new(n, &x)). A count of 0 also gives a
 * valid pointer. On failure, AD_MEMORY, *out is unchanged. Free with ad_release or free(). */
#define ad_new(count, out) ad_new_bytes((count), sizeof **(out), (void **)(out))
AD_API AD_CHECKED ad_status ad_new_bytes(size_t count, size_t size, void **out);
AD_API void ad_release(void *pointer); /* free(); NULL allowed */

/* ---- random numbers without a state ----
 * Philox4x32-10 (Salmon et al. 2011): a number depends only on (seed, stream, index), never on which rank draws it or
 * in which order, so every mesh draws the same numbers. addend/data.h defines how the words of Philox are used. */

AD_API double ad_random_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* in [0,1), with 53 bits */
AD_API double ad_random_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, variance 1; Box-Muller */
AD_API uint64_t ad_random_stream(const char *name); /* the stream for a name: XXH64(name); NULL counts as "" */

/* ---- texts ---- */

/* Makes a text from outside (a path, a name in a file) safe for a terminal: each byte of a control character, of a
 * character that changes the direction of writing, or of a sequence that is not UTF-8, is written as \xHH. Text that
 * does not fit into `buffer` is truncated. Returns buffer. */
AD_API const char *ad_printable(const char *text, char *buffer, size_t size);
/* Returns the name, of `count` names, that was probably meant by the unknown name `unknown`: the two differ by a letter
 * or two. Returns NULL if no name is so similar. */
AD_API const char *ad_nearest_name(const char *unknown, const char *const *names, size_t count);

#if defined(__cplusplus)
}
#endif
#endif

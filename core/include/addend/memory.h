/* Memory for objects of your program, as the libraries allocate their own: zeroed, or AD_MEMORY with a message. */
#ifndef ADDEND_MEMORY_H
#define ADDEND_MEMORY_H
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Allocates `count` zeroed elements of the type of **out: double *x; AD_TRY(ad_new(n, &x)). A count of 0 also gives a
 * valid pointer. On failure *out is unchanged. Free with ad_release or free(). */
#define ad_new(count, out) ad_new_bytes((count), sizeof **(out), (void **)(out))
AD_API AD_CHECKED ad_status ad_new_bytes(size_t count, size_t size, void **out);
AD_API void ad_release(void *pointer); /* free(); NULL allowed */

#if defined(__cplusplus)
}
#endif
#endif

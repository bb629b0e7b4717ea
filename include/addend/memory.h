/* Memory for objects of one's own: zeroed, or AD_MEMORY with a sentence. The libraries' own objects are allocated so
 * too. */
#ifndef ADDEND_MEMORY_H
#define ADDEND_MEMORY_H
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* `count` zeroed elements of the type that *out points to: double *x; AD_TRY(ad_new(n, &x)); none of them give a valid
 * pointer too. On failure *out is unchanged. Freed with ad_release or free(). */
#define ad_new(count, out) ad_new_bytes((count), sizeof **(out), (void **)(out))
AD_API AD_CHECKED ad_status ad_new_bytes(size_t count, size_t size, void **out);
AD_API void ad_release(void *pointer); /* free(); NULL allowed */

#if defined(__cplusplus)
}
#endif
#endif

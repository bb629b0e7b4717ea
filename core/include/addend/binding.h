/* For bindings to other languages: the version of the loaded library, and numbers that otherwise only a C compiler can
 * read from these headers.
 *
 * For authors of bindings to other languages. Any thread may call these functions at any time. */
#ifndef ADDEND_BINDING_H
#define ADDEND_BINDING_H
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* AD_HEADER_VERSION is the version of these headers, ad_version() that of the library that the process loaded. */
#define AD_HEADER_VERSION "0.1.0"
AD_API const char *ad_version(void);
/* Looks up a constant of these headers by its name: an enumerator or a count ("AD_F32", "AD_AXIS_COUNT", "AD_S(0)"), or
 * the size of a structure that callers fill in or read ("sizeof(ad_layout)"), or the offset in bytes of one of its
 * fields, for structures that appear in calls ("offsetof(ad_layout, mesh)"). AD_INVALID for any other name; *out is
 * then unchanged. */
AD_API AD_CHECKED ad_status ad_header_constant(const char *name, int64_t *out);

#if defined(__cplusplus)
}
#endif
#endif

/* What a binding for another language asks the library that it loaded: its version, and the numbers that only a C
 * compiler reads from these headers. */
#ifndef ADDEND_BINDING_H
#define ADDEND_BINDING_H
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The version of these headers, and that of the library. */
#define AD_HEADER_VERSION "0.1.0"
AD_API const char *ad_version(void);
/* The value of an enumerator or of a count by its name in these headers ("AD_F32", "AD_AXIS_COUNT", "AD_S(0)"), or the
 * size of a structure that callers fill in or read ("sizeof(ad_layout)"). AD_INVALID for any other text; *out is then
 * unchanged. */
AD_API AD_CHECKED ad_status ad_header_constant(const char *name, int64_t *out);

#if defined(__cplusplus)
}
#endif
#endif

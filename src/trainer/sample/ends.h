/* The tokens with which a model ends its text. */
#ifndef SAMPLE_ENDS_H
#define SAMPLE_ENDS_H
#include <stdint.h>
#include "addend/status.h"

enum { AD_ENDS_MAX = 16 };
typedef struct ad_ends {
  int64_t tokens[AD_ENDS_MAX];
  int count;
} ad_ends;

/* eos_token_id of the folder's generation_config.json, or where that has none of config.json: a number or several.
 * None where neither file is there. AD_INVALID: it is something else. */
ad_status ad_ends_read(const char *folder, ad_ends *out) AD_CHECKED;

#endif

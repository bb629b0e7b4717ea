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

/* Reads eos_token_id (a number or a list) from the folder's generation_config.json or, if that has none, from its
 * config.json. No tokens if neither file exists. AD_INVALID: eos_token_id is something else. */
ad_status ad_ends_read(const char *folder, ad_ends *out) AD_CHECKED;

#endif

/* The tokens with which a model ends a text. */
#ifndef SAMPLE_ENDS_H
#define SAMPLE_ENDS_H
#include <stdint.h>
#include "addend/status.h"

enum { AD_ENDS_MAX = 16 };
typedef struct ad_ends {
  int64_t tokens[AD_ENDS_MAX];
  int count;
} ad_ends;

/* Reads eos_token_id (a number or a list) from the folder's generation_config.json or, if that does not have it, from
 * config.json. If neither file exists, there are no such tokens. Returns AD_INVALID if eos_token_id is neither a number
 * nor a list of numbers. */
ad_status ad_ends_read(const char *folder, ad_ends *out) AD_CHECKED;

#endif

/* The document of `addend check --json`. */
#ifndef CHECK_DOCUMENT_H
#define CHECK_DOCUMENT_H
#include <jansson.h>

#include "check/sabotage.h"

/* Everything that a check found. */
typedef struct ad_findings {
  const ad_recipe *recipe;
  const ad_check_options *options;
  const ad_proof *proof;
  const ad_sabotage *sabotages;
  size_t sabotage_count, survivors;
  ad_unplanted unplanted[AD_SWITCH_COUNT];
  size_t unplanted_count;
  int64_t world;
  const char *engine;
  double seconds;
} ad_findings;

/* NULL when memory is out. Caller gives it up with json_decref. */
json_t *ad_findings_document(const ad_findings *findings);

#endif

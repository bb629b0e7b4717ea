/* What a plan holds before it is printed: gathered by acting as ranks on engine dry. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include <jansson.h>

#include "addend/plan.h"
#include "addend/train.h"

/* Bytes of one rank. */
typedef struct ad_plan_memory {
  int64_t rank;  /* the first of those that need exactly this */
  int64_t ranks; /* how many do */
  size_t params, gathered, grads, optimizer, buckets, activations, runtime;
} ad_plan_memory;
size_t ad_plan_peak(const ad_plan_memory *memory);

/* Acts as `rank`: creates the run on engine dry and takes one step of it, so that types are checked and bytes counted.
 */
ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, int64_t world, ad_comm **comm, ad_run **run) AD_CHECKED;
ad_plan_memory ad_plan_memory_of(ad_run *run);
/* The document of `addend plan --json`; *out is given up with json_decref. */
ad_status ad_plan_document(const ad_recipe *recipe, json_t **out) AD_CHECKED;

#endif

/* What a run's numbers depend on, key by key: the recipe's values, the contents of the files that it names,
 * and what makes matrix products. */
#ifndef TRAIN_FINGERPRINT_H
#define TRAIN_FINGERPRINT_H
#include "recipe/schema.h"
#include "train/run.h"

typedef struct ad_fingerprint {
  ad_schema schema;          /* has the keys' names */
  ad_checkpoint_fact *facts; /* the values are owned */
  size_t count;
} ad_fingerprint;

/* 1: the two recipes differ in no key that changes what the numbers mean. Files count by their names. */
ad_status ad_fingerprint_same_recipe(const ad_recipe *a, const ad_recipe *b, int *out) AD_CHECKED;
ad_status ad_fingerprint_create(const ad_run *run, ad_fingerprint *out) AD_CHECKED;
void ad_fingerprint_release(ad_fingerprint *fingerprint);
/* Holds the facts of a checkpoint against this run's. AD_INVALID, with both values, for keys that change what the
 * numbers mean, unless the run accepts another recipe; the first rank tells of those that are accepted, and of other
 * products. */
ad_status ad_fingerprint_judge(const ad_run *run, const ad_fingerprint *here, const ad_checkpoint_fact *there,
                               size_t count) AD_CHECKED;

#endif

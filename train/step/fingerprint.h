/* The facts on which a run's numbers depend, key by key: the recipe's values, the contents of the files that it names,
 * and what computes matrix products. A checkpoint stores them as a fingerprint, so that no run resumes from the
 * checkpoint of another run by mistake. */
#ifndef TRAIN_FINGERPRINT_H
#define TRAIN_FINGERPRINT_H
#include "recipe/schema.h"
#include "step/run.h"

typedef struct ad_fingerprint {
  ad_schema schema;          /* owns the names of the keys */
  ad_checkpoint_fact *facts; /* one for each key; the values are owned */
  size_t count;
} ad_fingerprint;

/* Sets *out to 1 if the two recipes have the same value of every key that changes what the numbers mean. Files are
 * compared by name. */
ad_status ad_fingerprint_same_recipe(const ad_recipe *a, const ad_recipe *b, int *out) AD_CHECKED;
ad_status ad_fingerprint_create(const ad_run *run, ad_fingerprint *out) AD_CHECKED;
void ad_fingerprint_release(ad_fingerprint *fingerprint);
/* Compares the facts of a checkpoint (`there`) with those of this run (`here`). If a key differs that changes what the
 * numbers mean, fails with AD_INVALID and both values; if the run accepts another recipe, the difference is only logged
 * on the first rank. Differences in other keys, and in what computes matrix products, are only logged. */
ad_status ad_fingerprint_judge(const ad_run *run, const ad_fingerprint *here, const ad_checkpoint_fact *there,
                               size_t count) AD_CHECKED;

#endif

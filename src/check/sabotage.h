/* Known mistakes, planted one at a time, and what became of each. */
#ifndef CHECK_SABOTAGE_H
#define CHECK_SABOTAGE_H
#include "base/switches.h"
#include "check/proof.h"

typedef enum ad_caught { AD_CAUGHT_NONE, AD_CAUGHT_TYPE, AD_CAUGHT_NUMBER, AD_CAUGHT_PROTOCOL } ad_caught;

typedef struct ad_sabotage {
  char name[64]; /* "average-instead-of-sum:dp_shard" */
  int catalogue; /* number of the published mistake, 0: none */
  int of_dtype;  /* planted in the recipe's own dtypes; all others in f64 */
  ad_axes axes;
  double expected_ratio; /* NaN: no single number */
  ad_caught caught;
  char param[96];
  double ratio;
  ad_cause cause;
  char message[2048];
} ad_sabotage;

/* A mistake that changes no number here, and why. */
typedef struct ad_unplanted {
  const char *name, *why;
} ad_unplanted;

enum { AD_SABOTAGE_MAX = 64 };
/* The mistakes that this recipe's topology and data can show, and those that they cannot. */
ad_status ad_sabotage_list(const ad_recipe *recipe, ad_sabotage out[AD_SABOTAGE_MAX], size_t *count,
                           ad_unplanted unplanted[AD_SWITCH_COUNT], size_t *unplanted_count) AD_CHECKED;
/* Repeats the proof with the mistake planted and fills in what became of it. */
ad_status ad_sabotage_try(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                          ad_sabotage *sabotage) AD_CHECKED;
const char *ad_caught_name(ad_caught caught);

#endif

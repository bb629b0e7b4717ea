/* Helper: tries one planted mistake in one recipe. */
#ifndef TESTS_CHECK_ALONE_H
#define TESTS_CHECK_ALONE_H
#include "world.h"

/* The mistake whose name begins with `begins` and contains `has`: planted in execution, or in the tape's record. */
static inline const ad_sabotage *find(const ad_sabotages *list, const char *begins, const char *has, int in_record) {
  for (size_t i = 0; i < list->count; i++) {
    const ad_sabotage *one = &list->list[i];
    int is_in_record = !one->known && one->planting.in_record;
    if (!strncmp(one->name, begins, strlen(begins)) && strstr(one->name, has) && is_in_record == in_record) return one;
  }
  fail_msg("no mistake is called %s...%s", begins, has);
  return NULL;
}

/* Plants one mistake and takes a proof of the recipe; *proof then has the numbers of every parameter
 * with that mistake. */
static inline ad_sabotage try_alone(const ad_recipe *recipe, const char *begins, const char *has, ad_proof *proof) {
  ad_check_options options = {.size = sizeof options, .sabotage = 1};
  ad_sabotages *tried;
  must(ad_sabotages_create(recipe, 0, 0, &tried));
  ad_sabotage found = *find(tried, begins, has, 0);
  tried->list[0] = found;
  tried->derived = !found.known;
  tried->count = 1;
  must(ad_sabotages_try(recipe, &options, proof, tried));
  found = tried->list[0];
  ad_sabotages_destroy(tried);
  return found;
}

#endif

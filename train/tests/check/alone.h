/* Helper: tries one mutant in one recipe. */
#ifndef TESTS_CHECK_ALONE_H
#define TESTS_CHECK_ALONE_H
#include "world.h"

/* The mutant whose name begins with `begins` and contains `has`: made in execution, or in the tape's record. */
static inline const ad_mutant *find(const ad_mutants *list, const char *begins, const char *has, int in_record) {
  for (size_t i = 0; i < list->count; i++) {
    const ad_mutant *one = &list->list[i];
    int is_in_record = !one->known && one->mutation.in_record;
    if (!strncmp(one->name, begins, strlen(begins)) && strstr(one->name, has) && is_in_record == in_record) return one;
  }
  fail_msg("no mistake is called %s...%s", begins, has);
  return NULL;
}

/* Makes one mutation and checks the recipe; *result then has the numbers of every parameter with that mutation. */
static inline ad_mutant try_alone(const ad_recipe *recipe, const char *begins, const char *has,
                                  ad_check_result *result) {
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  must(ad_mutants_create(recipe, 0, 0, &tried));
  ad_mutant found = *find(tried, begins, has, 0);
  tried->list[0] = found;
  tried->derived = !found.known;
  tried->count = 1;
  must(ad_mutants_try(recipe, &options, result, tried));
  found = tried->list[0];
  ad_mutants_destroy(tried);
  return found;
}

#endif

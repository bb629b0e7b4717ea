/* Helpers that parse a recipe's text: one expects success, the other a certain error message. */
#ifndef TESTS_RECIPE_PARSING_H
#define TESTS_RECIPE_PARSING_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "addend/recipe.h"
#include "base/memory.h"
#include "says.h"

#define COUNT_OF(...) (sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
/* READ parses a recipe with --set arguments (NULL: none) that must be right. */
#define READ(text, ...) read_good(text, (const char *const[]){__VA_ARGS__}, COUNT_OF(__VA_ARGS__))
/* SAYS checks that the recipe is refused with a message that has these facts, in parentheses: "r.yaml:5: KEY",
 * "--set KEY", values. Its sentence is in the golden list of that text or of those --set arguments. */
#define SAYS(facts, text) says(__FILE__, __LINE__, #text, SAYS_FACTS facts, text, NULL, 0)
#define SET_SAYS(facts, text, ...)                                                                   \
  says(__FILE__, __LINE__, #__VA_ARGS__, SAYS_FACTS facts, text, (const char *const[]){__VA_ARGS__}, \
       COUNT_OF(__VA_ARGS__))

static inline ad_recipe *read_good(const char *text, const char *const *sets, size_t count) {
  ad_recipe *recipe = NULL;
  if (count == 1 && !sets[0]) count = 0;
  if (ad_recipe_parse(text, "dir/r.yaml", sets, count, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

static inline void says(const char *file, int line, const char *list, const char *const *facts, const char *text,
                        const char *const *sets, size_t count) {
  ad_recipe *recipe = NULL;
  assert_int_equal(ad_recipe_parse(text, "r.yaml", sets, count, &recipe), AD_INVALID);
  says_or_fail(says_wrong(ad_last_error(), facts, file, list), file, line);
  assert_null(recipe);
}

/* Parses with each allocation failing in turn, until a parse makes fewer and returns `wanted`: no failure is passed
 * over. Returns the number of allocations. */
static inline long fails_with_each_allocation(const char *text, const char *const *sets, size_t count,
                                              ad_status wanted) {
  for (long n = 1; n < 2000; n++) {
    ad_recipe *recipe = NULL;
    ad_memory_fail_at(n);
    ad_status status = ad_recipe_parse(text, "r.yaml", sets, count, &recipe);
    int has_failed = ad_memory_fail_at(0) >= n;
    assert_true(!status == !!recipe);
    ad_recipe_destroy(recipe);
    if (status != (has_failed ? AD_MEMORY : wanted)) fail_msg("allocation %ld: %s", n, ad_last_error());
    if (!has_failed) return n - 1;
  }
  return -1;
}

#endif

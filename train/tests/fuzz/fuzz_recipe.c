/* Fuzzes a recipe and, after a zero byte, a --set argument: both are refused with a message, the same each time, or the
 * printed recipe reads back as the same recipe. No file is opened. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "addend/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds) {
  if (!holds) abort();
}

static void prints_as_itself(const ad_recipe *recipe) {
  char *once, *twice;
  ad_recipe *again;
  must(!ad_recipe_print(recipe, &once));
  must(!ad_recipe_parse(once, "printed", NULL, 0, &again));
  must(!ad_recipe_print(again, &twice));
  must(!strcmp(once, twice));
  ad_recipe_destroy(again);
  free(once);
  free(twice);
}

static void is_refused_again(const char *text, const char *const *sets, size_t set_count) {
  ad_recipe *recipe;
  char *message = strdup(ad_last_error());
  must(message && *message);
  must(ad_recipe_parse(text, "fuzz.yaml", sets, set_count, &recipe));
  must(!strcmp(message, ad_last_error()));
  free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  ad_recipe *recipe;
  must(text != NULL);
  if (size) memcpy(text, data, size);
  text[size] = 0;
  size_t length = strlen(text);
  const char *set = text + length + (length < size);
  size_t set_count = length < size;
  if (!ad_recipe_parse(text, "fuzz.yaml", &set, set_count, &recipe)) {
    prints_as_itself(recipe);
    ad_recipe_destroy(recipe);
  } else {
    is_refused_again(text, &set, set_count);
  }
  free(text);
  return 0;
}

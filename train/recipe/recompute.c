/* Which layers run again in backward, and what is wrong with the patterns that say so. */
#include "recipe/recompute.h"

#include <fnmatch.h>
#include <string.h>
#include "program/program.h"

static const char path[] = "train.recompute";

static int is_word(const char *text) { return !strcmp(text, "none") || !strcmp(text, "layers"); }

const char *const *ad_recipe_recompute(const ad_recipe *recipe, size_t *count) {
  static const char *const every[] = {"*"};
  const char *const *given = (const char *const *)recipe->train.recompute;
  *count = recipe->train.recompute_count;
  if (*count != 1 || !is_word(given[0])) return given;
  *count = !strcmp(given[0], "layers");
  return every;
}

static int names_layer(const ad_program *program, const char *pattern) {
  for (size_t i = 0; i < program->layer_count; i++)
    if (!fnmatch(pattern, program->layers[i], 0)) return 1;
  return 0;
}

void ad_recompute_check(ad_reading *r, const ad_program *program) {
  size_t count;
  const char *const *patterns = ad_recipe_recompute(r->recipe, &count);
  if (count && !program->layer_count) {
    ad_recipe_errors_add(&r->errors, ad_reading_place(r, path), path,
                         "is set, but the program `%s` has no layers that could run again; leave this key out",
                         ad_program_kind_of(program)->name);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    ad_recipe_place place = ad_reading_element_place(r, path, i);
    if (is_word(patterns[i]))
      ad_recipe_errors_add(&r->errors, place, path, "has the word '%s' among patterns; write it alone, or leave it out",
                           patterns[i]);
    else if (!names_layer(program, patterns[i]))
      ad_recipe_errors_add(&r->errors, place, path, "the pattern \"%s\" matches no layer; the layers are %s to %s",
                           patterns[i], program->layers[0], program->layers[program->layer_count - 1]);
  }
}

/* Patterns of parameter names: which one counts for a name, and which ones no parameter needs. */
#include "recipe/patterns.h"

#include <fnmatch.h>
#include <stdio.h>
#include "program/program.h"

const char *ad_pattern_at(ad_patterns patterns, size_t index) {
  return *(char *const *)((const char *)patterns.first + index * patterns.stride);
}

static int matches(const char *pattern, const char *name) { return !fnmatch(pattern, name, 0); }

size_t ad_pattern_first(ad_patterns patterns, const char *name) {
  size_t i = 0;
  while (i < patterns.count && !matches(ad_pattern_at(patterns, i), name)) i++;
  return i;
}

/* ---- patterns that no parameter needs ---- */

/* What the parameters of a program make of one pattern. */
typedef struct pattern_use {
  size_t matched; /* the number of parameters that the pattern matches */
  size_t first;   /* the number of those for which it is the first that matches */
  size_t before;  /* the index of a pattern before it that has one of the others */
  int several;    /* 1: the others do not all have the same pattern before it */
} pattern_use;

static void count_name(ad_patterns patterns, size_t index, const char *name, pattern_use *use) {
  if (!matches(ad_pattern_at(patterns, index), name)) return;
  size_t first = ad_pattern_first(patterns, name);
  if (first == index) {
    use->first++;
  } else {
    use->several |= use->matched > use->first && first != use->before;
    use->before = first;
  }
  use->matched++;
}

static pattern_use use_of(const ad_program *program, ad_patterns patterns, size_t index) {
  char name[AD_PROGRAM_NAME_SIZE];
  pattern_use use = {0};
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++)
      count_name(patterns, index, ad_program_param_name(program, m, i, name, sizeof name), &use);
  return use;
}

/* Writes "embedding.weight to final.norm.weight", as examples of parameter names, and returns buffer. */
static const char *some_names(const ad_program *program, char *buffer, size_t size) {
  char first[AD_PROGRAM_NAME_SIZE] = "", last[AD_PROGRAM_NAME_SIZE] = "";
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    size_t count = ad_program_module(program, m)->param_count;
    if (!count) continue;
    if (!*first) ad_program_param_name(program, m, 0, first, sizeof first);
    ad_program_param_name(program, m, count - 1, last, sizeof last);
  }
  snprintf(buffer, size, "%s to %s", first, last);
  return buffer;
}

/* Adds an error if no parameter has the pattern as its first. */
static void check_first(ad_reading *r, const pattern_use *use, ad_patterns patterns, size_t index,
                        ad_recipe_place place, const char *path) {
  const char *pattern = ad_pattern_at(patterns, index);
  if (use->first) return;
  ad_recipe_errors_add(&r->errors, place, path,
                       "the pattern \"%s\" is never the first that matches: \"%s\"%s before it %s all its "
                       "parameters; put it before %s",
                       pattern, ad_pattern_at(patterns, use->before), use->several ? " and others" : "",
                       use->several ? "have" : "has", use->several ? "them" : "that one");
}

void ad_patterns_check(ad_reading *r, const ad_program *program, ad_patterns patterns, const char *path,
                       const char *member) {
  for (size_t i = 0; i < patterns.count; i++) {
    char element[64], names[2 * AD_PROGRAM_NAME_SIZE + 4];
    ad_text text = ad_text_on(element, sizeof element);
    ad_text_add(&text, "%s", path);
    if (member) ad_text_add(&text, "[%zu].%s", i, member);
    ad_recipe_place place = ad_reading_element_place(r, path, i);
    pattern_use use = use_of(program, patterns, i);
    if (use.matched)
      check_first(r, &use, patterns, i, place, element);
    else
      ad_recipe_errors_add(&r->errors, place, element, "the pattern \"%s\" matches no parameter; the parameters are %s",
                           ad_pattern_at(patterns, i), some_names(program, names, sizeof names));
  }
}

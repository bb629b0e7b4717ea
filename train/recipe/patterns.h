/* Patterns of parameter names, as precision.overrides and groups have them: one language, that of fnmatch without flags,
 * and one rule, the first pattern that matches a name counts for it. */
#ifndef RECIPE_PATTERNS_H
#define RECIPE_PATTERNS_H
#include "recipe/reading.h"

/* A list of patterns in the order in which a recipe writes them. */
typedef struct ad_patterns {
  const void *first; /* the first of `count` structs, each of which begins with a char *, its pattern */
  size_t stride;     /* bytes from one struct to the next */
  size_t count;
} ad_patterns;

const char *ad_pattern_at(ad_patterns patterns, size_t index);
/* Returns the index of the first pattern that matches the name, or the count of patterns if none does. */
size_t ad_pattern_first(ad_patterns patterns, const char *name);
/* Adds an error about every pattern that matches no parameter of the program, and about every one that is never the
 * first that matches. Pattern i is in element i of the key `path`: the value of the key `member` there, or, if `member`
 * is NULL, itself a key. */
void ad_patterns_check(ad_reading *reading, const ad_program *program, ad_patterns patterns, const char *path,
                       const char *member);

#endif

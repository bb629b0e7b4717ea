/* Collecting everything that is wrong with a recipe, so that it is reported at once, each mistake with its place. */
#ifndef RECIPE_MISTAKES_H
#define RECIPE_MISTAKES_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

/* Where a value was written. */
typedef struct ad_place {
  const char *origin; /* name of the file, or "--set PATH"; borrowed */
  int order;          /* 0: the file; i: the i-th --set */
  int64_t line;       /* from 1; 0: none */
} ad_place;

typedef struct ad_mistake {
  int order;
  int64_t line;
  char *text;
} ad_mistake;

typedef struct ad_mistakes {
  ad_mistake *entries; /* in the order of their places */
  size_t count, capacity;
  size_t unlisted;  /* more than are worth listing */
  ad_status status; /* of the first mistake; AD_MEMORY if one could not be kept */
} ad_mistakes;

/* Adds "origin:line: path: message"; the path is left out where it is "" or the one that --set named. */
void ad_mistakes_add(ad_mistakes *mistakes, ad_place place, const char *path, const char *format, ...) AD_PRINTF(4, 5);
/* The same for a file that cannot be used: AD_IO, unless there are mistakes in the recipe itself. */
void ad_mistakes_add_io(ad_mistakes *mistakes, ad_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* AD_OK if there are none; otherwise records all of them as the last error. */
AD_CHECKED ad_status ad_mistakes_report(const ad_mistakes *mistakes);
void ad_mistakes_clear(ad_mistakes *mistakes);

#endif

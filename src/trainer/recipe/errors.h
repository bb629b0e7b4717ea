/* Collecting everything that is wrong with a recipe, so that it is reported at once, each error with its place. */
#ifndef RECIPE_ERRORS_H
#define RECIPE_ERRORS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

/* Where a value was written. */
typedef struct ad_recipe_place {
  const char *origin; /* name of the file, or "--set PATH"; borrowed */
  int order;          /* 0: the file; i: the i-th --set */
  int64_t line;       /* from 1; 0: none */
} ad_recipe_place;

typedef struct ad_recipe_error {
  int order;
  int64_t line;
  char *text;
} ad_recipe_error;

typedef struct ad_recipe_errors {
  ad_recipe_error *entries; /* in the order of their places */
  size_t count, capacity;
  size_t unlisted;  /* more than are worth listing */
  ad_status status; /* of the first error; AD_MEMORY if one could not be kept */
} ad_recipe_errors;

/* Adds "origin:line: path: message"; the path is left out where it is "" or the one that --set named. */
void ad_recipe_errors_add(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* The same for a file that cannot be used: AD_IO, unless there are errors in the recipe itself. */
void ad_recipe_errors_add_io(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* AD_OK if there are none; otherwise records all of them as the last error. */
AD_CHECKED ad_status ad_recipe_errors_report(const ad_recipe_errors *errors);
void ad_recipe_errors_clear(ad_recipe_errors *errors);

#endif

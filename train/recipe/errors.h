/* Collects all errors of a recipe, each with its place, to report them together. */
#ifndef RECIPE_ERRORS_H
#define RECIPE_ERRORS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

/* Where a value was written: a file and line, or an option --set. */
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
  ad_recipe_error *entries; /* sorted by their places */
  size_t count, capacity;
  size_t unlisted;  /* how many errors were left out of the list */
  ad_status status; /* status of the first error; AD_MEMORY if an error could not be kept */
} ad_recipe_errors;

/* Adds the error "origin:line: path: message". The path is left out if it is "", or if it is the path of --set. */
void ad_recipe_errors_add(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* Adds an error about a file that cannot be used. The report's status is AD_IO if all errors are of this kind. */
void ad_recipe_errors_add_io(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* AD_OK if there are no errors; otherwise makes one message of them, as the last error, and returns its status. */
AD_CHECKED ad_status ad_recipe_errors_report(const ad_recipe_errors *errors);
void ad_recipe_errors_clear(ad_recipe_errors *errors);

#endif

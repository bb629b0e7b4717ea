/* Collects all errors of a recipe with their places, so that they are reported together. */
#ifndef RECIPE_ERRORS_H
#define RECIPE_ERRORS_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

/* Where a value is written: in a line of a file, or in an option --set. */
typedef struct ad_recipe_place {
  const char *origin; /* name of the file, or "--set PATH"; borrowed */
  int order;          /* 0 for the file, i for the i-th --set */
  int64_t line;       /* counted from 1; 0 if there is none */
} ad_recipe_place;

typedef struct ad_recipe_error {
  int order;
  int64_t line;
  char *text;
} ad_recipe_error;

typedef struct ad_recipe_errors {
  ad_recipe_error *entries; /* sorted by place */
  size_t count, capacity;
  size_t unlisted;  /* number of errors that are not in the list */
  ad_status status; /* status of the first error; AD_MEMORY if an error could not be stored */
} ad_recipe_errors;

/* Adds the error "origin:line: path: message". The path is left out if it is "", or if `origin` already has it. */
void ad_recipe_errors_add(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* Adds an error about a file that cannot be used. The status of the report is AD_IO if all errors are of this kind. */
void ad_recipe_errors_add_io(ad_recipe_errors *errors, ad_recipe_place place, const char *path, const char *format, ...)
    AD_PRINTF(4, 5);
/* Returns AD_OK if there are no errors. Otherwise makes one message of them (ad_last_error) and returns its status. */
AD_CHECKED ad_status ad_recipe_errors_report(const ad_recipe_errors *errors);
void ad_recipe_errors_clear(ad_recipe_errors *errors);

#endif

/* The check compares the distributed gradient with that of one process: in f64 and, if the recipe rounds anywhere, also
 * in the recipe's own dtypes. It has two additions: the directional derivative, which needs no reference; and mutants,
 * mistakes that are made on purpose to show that the check notices them.
 *
 * For users. Call these functions on one thread at a time. ad_check starts processes, which needs a process without
 * other threads. */
#ifndef ADDEND_CHECK_H
#define ADDEND_CHECK_H
#include "addend/recipe.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_check_options {
  size_t size;      /* sizeof(ad_check_options) */
  int64_t steps;    /* number of training steps to check; 0: 2 steps */
  ad_dtype dtype;   /* dtype of the check: 0 means f64; AD_F32 is the other choice */
  int recipe_dtype; /* 1: the check is in the recipe's own dtypes, instead of `dtype` */
  /* 1: compare with the directional derivative alone, without a reference. The check of a program other than addend's
   * own always makes this comparison too, in f64, unless the program's rules.not_smooth gives a reason */
  int directional;
  /* 1: also repeats the check with mutants of the program, each with one mistake */
  int mutate;
  int64_t mutant_count; /* how many of the mutants derived from the program are tried, drawn at random; 0: all */
  uint64_t mutant_seed; /* seed with which these mutants are drawn */
  /* folder, made by the check, for the values before and after each step (audit/docs/dumps.md); NULL: none */
  const char *dump;
  void (*progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
} ad_check_options;

/* Starts the recipe's ranks on backend shm, checks the recipe, and returns the document of `addend check --json`.
 * *holds is 1 if every judged number is right and no mutant survived. The status is AD_OK also when *holds is 0.
 * Caller frees *json with free(). */
AD_API AD_CHECKED ad_status ad_check(const ad_recipe *recipe, const ad_check_options *options, int *holds, char **json);
/* Like ad_check, on the ranks of an open comm; there must be as many as the recipe's mesh has, and all of them call
 * it. *json is set on rank 0 and NULL on all others; *holds is the same on all. `mutate` is refused: every mutant
 * needs new ranks, which only ad_check starts. After an error the comm can only be closed. */
AD_API AD_CHECKED ad_status ad_check_on(ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options,
                                        int *holds, char **json);
/* Turns the document of ad_check into tables for people: one line for all parameters that match, a row for each that
 * does not match, counts of the mutants, and a row for each survivor. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_check_table(const char *json, ad_text_style style, char **out);
/* Like ad_check_table, with a row for every parameter and every mutant, even for mutants that were not tried. */
AD_API AD_CHECKED ad_status ad_check_list(const char *json, ad_text_style style, char **out);

#if defined(__cplusplus)
}
#endif
#endif

/* The proof: the distributed gradient against that of one process, in f64, and, where the recipe rounds anywhere, in
 * its own dtypes; the directional derivative, which needs no reference; and sabotage, which proves the proof. */
#ifndef ADDEND_CHECK_H
#define ADDEND_CHECK_H
#include "addend/recipe.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_check_options {
  size_t size;      /* sizeof(ad_check_options) */
  int64_t steps;    /* 0: 2 */
  ad_dtype dtype;   /* 0: f64; AD_F32 */
  int recipe_dtype; /* 1: keep the recipe's own contract */
  int directional;
  int sabotage;
  int64_t sabotage_count; /* how many of the mistakes that are derived from the program are planted, drawn; 0: all */
  uint64_t sabotage_seed; /* of the draw */
  const char *dump; /* folder for what each step starts from and comes to (docs/dumps.md); it is made; NULL: none */
  void (*progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
} ad_check_options;

/* Starts the recipe's ranks on engine shm, proves, and returns the document of `addend check --json`. *holds: every
 * judged number holds and no sabotage survived. AD_OK also when the answer is no. Caller frees *json with free(). */
AD_API AD_CHECKED ad_status ad_check(const ad_recipe *recipe, const ad_check_options *options, int *holds, char **json);
/* The same on the ranks of an open comm, as many as the recipe's mesh has; all call it. *json is set on rank 0 and NULL
 * on the others, *holds is the same on all. `sabotage` is refused: every planted mistake needs ranks of its own, which
 * ad_check starts. After an error the comm can only be closed. */
AD_API AD_CHECKED ad_status ad_check_on(ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options,
                                        int *holds, char **json);
/* The same document as tables for people. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_check_table(const char *json, ad_text_style style, char **out);

#if defined(__cplusplus)
}
#endif
#endif

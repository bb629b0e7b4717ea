/* Plans: what will be reduced, over what, when, in how many bytes, at any world size. Nothing runs and no data moves:
 * one process acts as the ranks on engine dry. */
#ifndef ADDEND_PLAN_H
#define ADDEND_PLAN_H
#include "addend/recipe.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_plan_options {
  size_t size;            /* sizeof(ad_plan_options) */
  int64_t ranks_per_node; /* consecutive ranks share a node's memory; 0: all ranks are on one node */
  const char *trace;      /* the folder of a run of the same pipeline, whose trace.json says what its actions take;
                             NULL: their shares of matrix products */
} ad_plan_options;

/* The document of `addend plan --json` (see the manual page) as text, or the same as tables for people. options NULL:
 * the defaults. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_plan_json(const ad_recipe *recipe, const ad_plan_options *options, char **out);
AD_API AD_CHECKED ad_status ad_plan_table(const ad_recipe *recipe, const ad_plan_options *options, char **out);

/* Plans of one recipe with other values of one key. */
typedef struct ad_plan_comparison {
  size_t size;     /* sizeof(ad_plan_comparison) */
  const char *key; /* "shard.zero": what the plans are headed with */
  size_t count;    /* of the next two; at least 1 */
  const char *const *values;
  const ad_recipe *const *recipes; /* the recipe read with each */
  const ad_plan_options *options;  /* NULL: the defaults */
  const char *const *unfit;        /* of each value why the recipe cannot have it, and then there is no recipe; NULL: it
                                      can. NULL: all can */
} ad_plan_comparison;
/* Side by side: the memory of the rank that needs most, part by part, the largest node's, and what a rank hands in
 * during a step, by operation and axes; of pipelines bubble and activations in flight too; as text of JSON (see the
 * manual page), or as a table for people. An error of one plan names its value. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_plan_compare_json(const ad_plan_comparison *comparison, char **out);
AD_API AD_CHECKED ad_status ad_plan_compare_table(const ad_plan_comparison *comparison, char **out);

/* Who sends what to whom, as the text of an SVG picture: meshes, the groups of each kind of collective, the routes of
 * bridges, and bytes. Of a pipeline its schedule: stages as rows, actions over time. `command`: shown below the title;
 * NULL: none. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_plan_picture(const ad_recipe *recipe, const ad_plan_options *options,
                                            const char *command, char **out);

/* To be called before a recipe's ranks are started on this machine. AD_MEMORY, saying how much which of them needs, if
 * that is more than a limit on this process's control group, or on one above it, and the swap that is free; or if a
 * process may not have the memory in which matrix products are made (ulimit -v, ulimit -d). Where less is left, there
 * or on the machine, than they need, that is a warning (ad_set_log): what is left changes from moment to moment. */
AD_API AD_CHECKED ad_status ad_plan_fits(const ad_recipe *recipe);

#if defined(__cplusplus)
}
#endif
#endif

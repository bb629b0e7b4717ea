/* Plans: the reductions of a recipe, their axes, times and bytes, at any world size. Nothing runs and no data moves:
 * one process acts as the ranks on backend dry.
 *
 * For users. Call these functions on one thread at a time. */
#ifndef ADDEND_PLAN_H
#define ADDEND_PLAN_H
#include "addend/recipe.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_plan_options {
  size_t size;            /* sizeof(ad_plan_options) */
  int64_t ranks_per_node; /* number of consecutive ranks that share a node's memory; 0: all ranks are on one node */
  /* folder of a run of the same pipeline: its trace.json has the times of the actions. NULL: times are estimated by
   * each action's share of the matrix products */
  const char *trace;
} ad_plan_options;

/* Makes the plan as text: the document of `addend plan --json` (see the manual page), or the same as tables for people.
 * options NULL: the defaults. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_plan_json(const ad_recipe *recipe, const ad_plan_options *options, char **out);
AD_API AD_CHECKED ad_status ad_plan_table(const ad_recipe *recipe, const ad_plan_options *options, char **out);

/* Prints the types of a recipe's parameters, as the modules use them (not as they are stored), in the notation of
 * spmd_types, a type checker for PyTorch programs: a document with the list "spmd" (see the manual page), or a table
 * with a line for each parameter. Of axes that shard one dimension the outermost comes first. AD_TYPE names a parameter
 * that is sharded zigzag: spmd_types has no such type. options NULL: the defaults. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_plan_spmd_json(const ad_recipe *recipe, const ad_plan_options *options, char **out);
AD_API AD_CHECKED ad_status ad_plan_spmd_table(const ad_recipe *recipe, const ad_plan_options *options, char **out);

/* Plans of one recipe with different values of one key. */
typedef struct ad_plan_comparison {
  size_t size;     /* sizeof(ad_plan_comparison) */
  const char *key; /* the key whose values differ, shown above the plans: "shard.zero" */
  size_t count;    /* number of values, and of recipes; at least 1 */
  const char *const *values;
  const ad_recipe *const *recipes; /* for each value, the recipe as read with that value of the key */
  const ad_plan_options *options;  /* NULL: the defaults */
  /* For each value, NULL if the recipe can have the value, otherwise the reason why it cannot; there is no recipe for
   * such a value. `unfit` NULL: the recipe can have all values. */
  const char *const *unfit;
} ad_plan_comparison;
/* Compares plans side by side, as JSON text (see the manual page) or as a table for people: the memory of the rank
 * with the highest need, part by part; the largest node's memory; and a rank's contributions to collectives during a
 * step, by operation and axes. For pipelines also the bubble and the activations in flight. An error of one plan
 * names its value. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_plan_compare_json(const ad_plan_comparison *comparison, char **out);
AD_API AD_CHECKED ad_status ad_plan_compare_table(const ad_plan_comparison *comparison, char **out);

/* Draws the communication of a recipe, as the text of an SVG picture: meshes, the groups of each kind of collective,
 * the routes of bridges, and bytes. For a pipeline it draws the schedule: stages as rows, actions over time. `command`
 * is shown below the title; NULL: none. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_plan_picture(const ad_recipe *recipe, const ad_plan_options *options,
                                            const char *command, char **out);

/* Checks whether a recipe's ranks fit into this machine's memory; call it before starting them. AD_MEMORY, naming which
 * ranks need how much, if they need more than a limit of this process's control group, or of one above it, plus the
 * free swap; also if a process may not have the memory for matrix products (ulimit -v, ulimit -d). If the ranks only
 * need more memory than is free now, in the control group or on the machine, ad_plan_fits returns AD_OK and logs a
 * warning (ad_set_log), because free memory changes all the time. */
AD_API AD_CHECKED ad_status ad_plan_fits(const ad_recipe *recipe);

#if defined(__cplusplus)
}
#endif
#endif

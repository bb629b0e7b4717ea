/* Leaves of the batch (train.leaves): how many rounds a step has, which rank computes which leaf, and which recipes
 * cannot have leaves. */
#ifndef RECIPE_LEAVES_H
#define RECIPE_LEAVES_H
#include "addend/recipe.h"

/* Returns how many leaves the global batch has for the program or, without leaves, how many microbatches. */
int64_t ad_recipe_parts(const ad_recipe *recipe);
/* Returns the number of rounds of a step. In a round each data-parallel position computes one microbatch or, with
 * leaves, at most one leaf. */
int64_t ad_recipe_rounds(const ad_recipe *recipe);
/* Returns how far gradients are reduced after a round. With leaves, a microbatch has several rounds, and its gradients
 * are reduced after the last of them. */
ad_sync ad_recipe_sync(const ad_recipe *recipe, size_t round);
/* Sets train.rounds_each, the number of rounds in a microbatch, for a mesh with `positions` data-parallel positions. */
void ad_recipe_set_rounds(ad_recipe *recipe, int64_t positions);
/* Returns the default of train.microbatches for a recipe with leaves. With ZeRO 2 and 3 each microbatch has at most one
 * leaf on each rank, so that a rank stores the full gradients of one leaf at a time. `mesh` is that of the program's
 * first module. */
int64_t ad_recipe_usual_microbatches(const ad_recipe *recipe, const ad_mesh *mesh);
/* For a recipe with leaves: sets *out to a list with the leaf that `rank` computes in each round of a step; -1: none.
 * Release it with ad_release. */
AD_CHECKED ad_status ad_recipe_list_leaves(const ad_recipe *recipe, int64_t rank, int64_t **out);
/* Like ad_recipe_list_leaves, but lists the leaf on which the rank's program runs in each round. With ZeRO 3 all ranks
 * gather parameters together. So while others compute leaves, a rank that has none runs its program on some leaf, too,
 * and the results are discarded. */
AD_CHECKED ad_status ad_recipe_list_passes(const ad_recipe *recipe, int64_t rank, int64_t **out);
/* Complains if train.leaves does not work with the recipe's other keys; otherwise sets train.rounds_each. */
void ad_recipe_check_leaves(ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to);

#endif

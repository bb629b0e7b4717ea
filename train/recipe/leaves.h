/* Leaves of the batch (train.leaves): the parts in which a step is computed, who computes which of them, and which
 * recipes cannot have leaves. */
#ifndef RECIPE_LEAVES_H
#define RECIPE_LEAVES_H
#include "addend/recipe.h"

/* Returns the number of parts of the global batch that the program sees: its leaves, or its microbatches. */
int64_t ad_recipe_parts(const ad_recipe *recipe);
/* Returns the number of rounds of a step. In a round each data-parallel position computes one microbatch or, with
 * leaves, at most one leaf. */
int64_t ad_recipe_rounds(const ad_recipe *recipe);
/* Returns how far the gradients of a round are reduced: with leaves, those of a microbatch after its last round. */
ad_sync ad_recipe_sync(const ad_recipe *recipe, size_t round);
/* Sets train.rounds_each, the number of rounds of a microbatch on this many data-parallel positions. */
void ad_recipe_set_rounds(ad_recipe *recipe, int64_t positions);
/* For a recipe with leaves that leaves train.microbatches out: returns how many there are. With ZeRO 2 and 3 a
 * microbatch is one leaf of a rank, so that a rank holds whole gradients of one leaf at a time. `mesh` is that of the
 * program's first module. */
int64_t ad_recipe_usual_microbatches(const ad_recipe *recipe, const ad_mesh *mesh);
/* For a recipe with leaves: makes the list of the leaves that a rank computes in each round of a step; -1 means none.
 * Release it with ad_release. */
AD_CHECKED ad_status ad_recipe_list_leaves(const ad_recipe *recipe, int64_t rank, int64_t **out);
/* The same of the leaves through which a rank's program passes. With ZeRO 3 ranks gather parameters together, so a rank
 * without a leaf passes through one all the same while others compute theirs, and what comes of it counts nowhere. */
AD_CHECKED ad_status ad_recipe_list_passes(const ad_recipe *recipe, int64_t rank, int64_t **out);
/* Complains if leaves cannot be summed with the other keys, and otherwise sets train.rounds_each. */
void ad_recipe_check_leaves(ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to);

#endif

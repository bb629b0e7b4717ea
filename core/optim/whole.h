/* Updates parameters as whole matrices: brings the shards of directions together by the moves of stacks.h, has them
 * transformed on the rank that owns them, and brings the shards of the results back. Working memory is of a few
 * matrices, whatever the number of layers. */
#ifndef OPTIM_WHOLE_H
#define OPTIM_WHOLE_H
#include "optim/stacks.h"

typedef struct ad_whole ad_whole;

/* Copies `params`, of which there is at least one, with their names and cuts. Collective over their mesh; their views
 * have the same ranks. AD_INVALID and AD_TYPE name the parameter that is wrong; AD_MEMORY. */
ad_status ad_whole_create(ad_comm *comm, const ad_optimizer_product *product, const ad_whole_param *params,
                          size_t count, ad_whole **out) AD_CHECKED;
void ad_whole_destroy(ad_whole *whole); /* NULL allowed */

/* Updates all whole parameters. updating[i] is the step of the optimizer's parameter i. Collective over the meshes of
 * all parameters. After an error the parameters are undefined. */
ad_status ad_whole_step(ad_whole *whole, const ad_updating *updating, const char *site) AD_CHECKED;

/* What the optimizer updates as whole matrices; NULL if it does so with no parameter. */
AD_INTERNAL const ad_whole *ad_optimizer_whole(const ad_optimizer *optimizer);
/* Bytes of working memory on this rank, with what moves take for packing (comm/scratch.h). */
AD_INTERNAL size_t ad_whole_bytes(const ad_whole *whole);
/* The stacks in the order of their rounds, and the parameters that their sheets number. */
AD_INTERNAL const ad_stack *ad_whole_stacks(const ad_whole *whole, size_t *count);
AD_INTERNAL const ad_whole_param *ad_whole_params(const ad_whole *whole, size_t *count);

/* Replaces a whole matrix, or a block of one, by its result: block by block of `cuts`, and in each the matrices that it
 * consists of. `scratch` has the bytes that the optimizer's record says for the largest of them. */
ad_status ad_whole_transform(const ad_whole *whole, const ad_stack *stack, const ad_whole_matrix *full,
                             const ad_param_matrices *matrices, const ad_matrix_cuts *cuts, const ad_update *numbers,
                             void *scratch) AD_CHECKED;

/* Argument of the injection point AD_INJECT_MATRIX. */
typedef struct ad_matrix_passing {
  const ad_whole *whole;
  const ad_stack *stack;
  const ad_whole_param *param;
  const ad_update *numbers;
  const ad_whole_matrix *matrix;
  void *scratch;
  int64_t rank; /* in the world */
  int handled;  /* 1: the mutation transformed the matrix itself, with the outcome `status` */
  ad_status status;
} ad_matrix_passing;

/* Argument of the injection point AD_INJECT_STACK. */
typedef struct ad_stack_passing {
  const ad_stack *stack;
  int64_t round;
  ad_array *results; /* [slots, rows, cols] as they are stored */
} ad_stack_passing;

#endif

/* The load of experts in a step: how many tokens chose each expert, how many choices were dropped, and the bias that
 * evens the load. */
#ifndef MOE_LOAD_H
#define MOE_LOAD_H
#include "moe/moe.h"
#include "addend/routing.h"

typedef struct ad_moe_load {
  ad_comm *comm;
  int64_t blocks, experts;
  ad_array own, all; /* [blocks, experts + 1] f64, choices of each expert, then dropped choices. own: counted on this
                      * rank; all: summed over ranks */
  double *step;      /* the numbers of the last step: `all`, then the share of dropped choices and the imbalance */
  double margin;     /* the smallest margin by which an expert was chosen on this rank */
  char (*names)[48]; /* the index of each block, as text */
} ad_moe_load;

/* Creates the counts of a decoder. `mesh` is the mesh of all stages, `view` that of one stage. Borrows comm and meshes.
 * Collective. */
ad_status ad_moe_load_create(ad_moe_load *load, const ad_comm *comm, const ad_mesh *mesh, const ad_mesh *view,
                             const ad_moe_options *options) AD_CHECKED;
void ad_moe_load_release(ad_moe_load *load);
/* sets the counts to 0 at the beginning of a step or of a validation batch */
void ad_moe_load_begin(ad_moe_load *load);
/* Adds the choices of one block; adds nothing if `routing` is NULL. */
void ad_moe_load_add(ad_moe_load *load, int64_t block, const ad_routing *routing);
/* Sums the counts over all ranks. Collective. */
ad_status ad_moe_load_sum(ad_moe_load *load) AD_CHECKED;
/* Raises bias[e] by `rate` for an expert with fewer choices than the mean, and lowers it by `rate` for one with more
 * (Wang et al. 2024). Call it after ad_moe_load_sum. */
void ad_moe_load_correct(const ad_moe_load *load, int64_t block, double rate, ad_array *bias);
/* Returns measured numbers of a step as an ad_program_kind's function does: the choices of each expert, block by block;
 * the share of dropped choices; and the largest load of an expert divided by the mean load, in the worst block. */
const double *ad_moe_load_measured(const ad_moe_load *load, size_t index, const char **name, size_t *count);

#endif

/* The load of experts in a step: the tokens that chose each expert, the dropped ones, and the bias that evens the
 * load. */
#ifndef MOE_LOAD_H
#define MOE_LOAD_H
#include "moe/moe.h"
#include "addend/tensor.h"

typedef struct ad_moe_load {
  ad_comm *comm;
  int64_t blocks, experts;
  ad_array own, all; /* [blocks, experts + 1] f64: choices of each expert, then the dropped ones; own: on this rank;
                      * all: summed over ranks */
  double *step;      /* `all` of the last step, followed by what is derived from it: the dropped share, the imbalance */
  double margin;     /* the smallest margin of a choice on this rank */
  char (*names)[48]; /* the blocks' numbers as text */
} ad_moe_load;

/* mesh: of all stages; view: of one stage. Borrows comm and meshes. Collective. */
ad_status ad_moe_load_create(ad_moe_load *load, const ad_comm *comm, const ad_mesh *mesh, const ad_mesh *view,
                             const ad_moe_options *options) AD_CHECKED;
void ad_moe_load_release(ad_moe_load *load);
/* begins a step, or a validation batch */
void ad_moe_load_begin(ad_moe_load *load);
void ad_moe_load_add(ad_moe_load *load, int64_t block, const ad_routing *routing); /* routing NULL: adds nothing */
ad_status ad_moe_load_sum(ad_moe_load *load) AD_CHECKED;                           /* sums over all ranks; collective */
/* Call it after ad_moe_load_sum. bias [experts] grows by `rate` for an expert with less than an even share of the
 * choices, and falls by `rate` for one with more (Wang et al. 2024). */
void ad_moe_load_correct(const ad_moe_load *load, int64_t block, double rate, ad_array *bias);
/* The measured numbers of a step, as in ad_program_kind: choices of each expert, block by block; the share of
 * dropped choices; the largest load of an expert over the even share, in the worst block. */
const double *ad_moe_load_measured(const ad_moe_load *load, size_t index, const char **name, size_t *count);

#endif

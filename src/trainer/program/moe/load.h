/* What experts were asked for in a step: tokens of each, those that were dropped, and the bias that evens them out. */
#ifndef PROGRAM_MOE_LOAD_H
#define PROGRAM_MOE_LOAD_H
#include "program/moe/moe.h"
#include "addend/tensor.h"

typedef struct ad_moe_load {
  ad_comm *comm;
  int64_t blocks, experts;
  ad_array own, all; /* [blocks, experts + 1] f64: choices of each expert, and the dropped ones; all: of all ranks */
  double *step;      /* `all` of the step that was taken last, and after it what follows from it */
  double margin;     /* smallest of a choice on this rank */
  char (*names)[48]; /* of the blocks' numbers */
} ad_moe_load;

/* mesh: of all stages; view: of one of them. Borrows comm, meshes. Collective. */
ad_status ad_moe_load_create(ad_moe_load *load, const ad_comm *comm, const ad_mesh *mesh, const ad_mesh *view,
                             const ad_moe_options *options) AD_CHECKED;
void ad_moe_load_release(ad_moe_load *load);
void ad_moe_load_begin(ad_moe_load *load);                                         /* a step, or a held-out one */
void ad_moe_load_add(ad_moe_load *load, int64_t block, const ad_routing *routing); /* NULL: nothing */
ad_status ad_moe_load_sum(ad_moe_load *load) AD_CHECKED;                           /* over all ranks; collective */
/* After the sum: bias [experts] += rate where an expert has less than an even share, -= where it has more. Wang et al.
 * 2024. */
void ad_moe_load_correct(const ad_moe_load *load, int64_t block, double rate, ad_array *bias);
/* As ad_program_kind's: choices of each expert block by block; the share of choices that was dropped; the most that an
 * expert has over an even share, of the worst block. */
const double *ad_moe_load_measured(const ad_moe_load *load, size_t index, const char **name, size_t *count);

#endif

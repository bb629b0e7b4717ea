/* Where the storage of a distributed run divides matrices into blocks. An optimizer that works on each rank's block
 * (`blockwise`) does so in one process, too, if it is told where blocks begin. */
#ifndef CHECK_CUTS_H
#define CHECK_CUTS_H
#include "addend/optim.h"
#include "step/run.h"

typedef struct ad_cuts {
  ad_matrix_cuts *list; /* one for each parameter of the run */
  size_t count;
  int64_t *numbers; /* the rows and columns of all of them */
} ad_cuts;

/* Finds the cuts of every parameter in the storage layouts of `run`. */
ad_status ad_cuts_create(const ad_run *run, ad_cuts *out) AD_CHECKED;
void ad_cuts_release(ad_cuts *cuts);

#endif

/* Finds out whether ranks compute formulas in pieces, so that they round at other places than one process does. */
#ifndef CHECK_FORMULAS_H
#define CHECK_FORMULAS_H
#include "step/run.h"

/* Sets *out, the same on all ranks, to 1 if axes of the mesh (tp, cp, ep) shard formulas, or if, in the recipe's own
 * dtypes, a tape rounds parts of a sum over ranks to 16 bits before they are added. An example is the gradient of an
 * activation to which several ranks contribute. Takes a step on backend dry unless the recipe's dtypes or mesh decide.
 * Collective over the run's ranks. */
ad_status ad_formulas_sharded(const ad_run *run, int *out) AD_CHECKED;

#endif

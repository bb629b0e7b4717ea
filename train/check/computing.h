/* Finds out how far a gradient may be off because of the recipe's own dtypes: one process computes the gradient in
 * these dtypes several times, each time rounded differently. core/docs/dtypes.md explains the method. */
#ifndef CHECK_COMPUTING_H
#define CHECK_COMPUTING_H
#include "check/reference.h"

/* How one process's draws of a vector vary. A draw is the vector computed once in the recipe's dtypes
 * (check/draws.h). */
typedef struct ad_spread {
  double error;   /* root mean square of the draws' distances to the vector in f64 */
  double centre;  /* distance of the draws' mean to the vector in f64 */
  double between; /* standard deviation of a draw, over all elements */
  double freedom; /* lower limit of the number of independent directions in which draws vary */
  double shared;  /* norm of the error that all draws share */
} ad_spread;

/* How far ranks may differ from one process; it depends on what their mesh shards. */
typedef struct ad_latitude {
  double coarser; /* ranks may round this many times as coarsely as one process's draws (check/draws.h) */
  /* factor of the draws' shared error (ad_spread.shared) by which one parameter's gradient may differ */
  double shared;
  double shared_all; /* `shared` for all gradients together */
  /* the largest accepted error of all gradients together, in standard deviations of that error among the draws,
   * which are results of the same step, rounded otherwise (check/draws.h) */
  double most_all;
} ad_latitude;

/* Arrays have one entry for each parameter, numbered as in ad_run_param_at. A norm is taken over the elements of the
 * parameter's gradient. */
typedef struct ad_computing {
  size_t count;
  ad_latitude latitude;
  double chance; /* the probability with which one number of a correct program may exceed its bound */
  double *norm;  /* norm of the gradient in f64 */
  /* norm of what rounding to communication dtypes changes in the gradient (values that travel between modules) */
  double *comm_rounding;
  double *sizes; /* norm of the sums of the addends' absolute values */
  ad_spread *spread;
  double *distance; /* distance of the sum of the ranks' own addends from the mean of one process's draws */
  double *apart;    /* the largest allowed `distance` */
  double *allowed;  /* how far the ranks' gradient may be from the gradient in f64, before it is reduced */
  /* distance and its bound for all gradients together, each gradient divided by one process's error in it */
  double all_distance, all_apart;
  double relative; /* how far all gradients may be off from f64, divided by their norm */
} ad_computing;

/* run: the distributed run. shards_formulas: as ad_formulas_sharded found. steps: number of steps of the check; the
 * probability of a false alarm is divided among all numbers of all steps. */
ad_status ad_computing_create(const ad_run *run, int shards_formulas, int64_t steps, ad_computing *out) AD_CHECKED;
void ad_computing_destroy(ad_computing *computing);
/* Fills the arrays for the step that the reference took last. `ranks` has the ranks' own addends of that step. */
void ad_computing_measure(ad_computing *computing, const ad_run *run, const ad_reference *reference,
                          const ad_addends *ranks);
/* Returns how far a loss may be from the reference's. `losses` has the losses of the draws; `largest` is the size of
 * the step's largest loss. */
double ad_computing_of_loss(const ad_computing *computing, const double losses[AD_DRAWS], double reference,
                            double largest);

/* An upper limit for the probability that a correct program is called wrong. */
#define AD_FALSE_ALARMS 1e-7

#endif

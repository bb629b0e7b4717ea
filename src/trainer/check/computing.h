/* What computing in the recipe's own dtypes may put into a gradient, taken from one process that computes in them
 * several times and rounds differently each time; docs/dtypes.md says why. */
#ifndef CHECK_COMPUTING_H
#define CHECK_COMPUTING_H
#include "check/reference.h"

/* Where one process's draws of a vector lie. */
typedef struct ad_spread {
  double error;   /* root mean square of their distances to the vector in f64 */
  double centre;  /* distance of their mean to it */
  double between; /* standard deviation of one of them, over all elements */
  double freedom; /* in how many independent directions they vary, at least */
  double shared;  /* what all of them are off by alike */
} ad_spread;

/* What ranks may do otherwise than one process: it follows from what their mesh cuts. */
typedef struct ad_latitude {
  double coarser;    /* how many times as coarsely as the draws they may round */
  double shared;     /* the part of what the draws share that they may have otherwise, in one parameter */
  double shared_all; /* the same in all gradients together */
  double most_all;   /* and by at most so many standard deviations of the draws */
} ad_latitude;

/* Arrays are numbered as in ad_run_param_at; their numbers are norms over a parameter's elements. */
typedef struct ad_computing {
  size_t count;
  ad_latitude latitude;
  double chance; /* with which one number of a right proof is beyond its bound */
  double *norm;  /* of the gradient in f64 */
  double *wires; /* of what it has from the roundings of wires */
  double *sizes; /* of the sums of the addends' absolute values */
  ad_spread *spread;
  double *distance;               /* from the mean of one process's draws to the sum of the ranks' own addends */
  double *apart;                  /* how large that may be */
  double *allowed;                /* how far from the gradient in f64 the ranks' may be, before anything is reduced */
  double all_distance, all_apart; /* of all gradients side by side, each over one process's error */
  double relative;                /* what all gradients may be off from f64, over their norm */
} ad_computing;

/* Axes cut what each rank computes (tp, cp, ep), not the batch alone. */
int ad_cuts_formulas(const ad_run *run);
/* `run` is the distributed one; `steps`: of the proof, whose numbers share the chance of a false alarm. */
ad_status ad_computing_create(const ad_run *run, int64_t steps, ad_computing *out) AD_CHECKED;
void ad_computing_destroy(ad_computing *computing);
/* Of the step that the reference took last, and the ranks' own addends of it. */
void ad_computing_measure(ad_computing *computing, const ad_run *run, const ad_reference *reference,
                          const ad_addends *ranks);
/* How far from the reference's a loss may be; `losses` are the draws'. */
double ad_computing_of_loss(const ad_computing *computing, const double losses[AD_DRAWS], double reference);

/* A right proof is called wrong no more often than this. */
#define AD_FALSE_ALARMS 1e-7

#endif

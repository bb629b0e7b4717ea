/* What computing in the recipe's own dtypes may put into a gradient, taken from one process that computes in them, both
 * with what values are rounded to where they cross:
 * docs/dtypes.md says why. */
#ifndef CHECK_COMPUTING_H
#define CHECK_COMPUTING_H
#include "check/reference.h"

/* Norms over each parameter's elements, numbered as in ad_run_param_at. */
typedef struct ad_computing {
  size_t count;
  double *norm;    /* of the gradient in f64 */
  double *error;   /* of one process's distance to it */
  double *wires;   /* of what it has from the roundings of wires */
  double *allowed; /* to many, before anything is reduced */
  double *apart;   /* how far many may be from one process */
  double relative; /* error of all gradients together over their norm */
  double turned;   /* the same of roundings of wires that computing turns */
  double factor;   /* how many times one process's error many may have */
} ad_computing;

/* Axes cut what each rank computes (tp, cp, ep), not the batch alone. */
int ad_cuts_formulas(const ad_run *run);
ad_status ad_computing_create(size_t count, ad_computing *out) AD_CHECKED;
void ad_computing_destroy(ad_computing *computing);
/* Of the step that the reference took last; `run` is the distributed one. */
void ad_computing_measure(ad_computing *computing, const ad_run *run, const ad_reference *reference);
/* How far parameter i of many ranks, the sum of their own addends, is from one process's: its part of what it may be.
 */
double ad_computing_share(const ad_computing *computing, const ad_reference *reference, size_t i, const double *sum);

#endif

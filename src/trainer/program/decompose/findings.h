/* What a decomposition found, counted on text that is held out. */
#ifndef PROGRAM_DECOMPOSE_FINDINGS_H
#define PROGRAM_DECOMPOSE_FINDINGS_H
#include "program/decompose/decompose.h"

/* How the target's components are masked in a pass over the text; the first: not at all, the target itself. Random
 * components are as many in each position as have an importance above 0: any, or those that do most there. */
enum {
  AD_PASS_TARGET,
  AD_PASS_MASKED,
  AD_PASS_ROUNDED,
  AD_PASS_STOCHASTIC,
  AD_PASS_UNMASKED,
  AD_PASS_RANDOM,
  AD_PASS_LARGEST,
  AD_PASSES
};
/* Importances above it are rounded up. */
#define AD_IMPORTANCE_THRESHOLD 0.5

/* Of a component: sums over positions of its importance and its square; at how many it is above 0, and above the
 * threshold. */
enum { AD_IMPORTANCE, AD_IMPORTANCE_SQUARE, AD_ABOVE_ZERO, AD_ABOVE_THRESHOLD, AD_PER_COMPONENT };

/* Sums over all ranks of the adversary, where everything arrives; the same on all ranks. */
typedef struct ad_findings {
  const ad_decomposition *decomposition;
  double *positions, *counted;  /* [1]: of the text; of those the ones whose next byte counts */
  double *entropy, *divergence; /* [AD_PASSES]: of the next bytes that count; KL(target || pass) at all positions */
  double *bytes;                /* [256]: next bytes that count */
  double *errors, *sizes;       /* [sites]: ||W - V U||^2, ||W||^2 */
  double *of_component;         /* [components, AD_PER_COMPONENT] */
  double *sums;                 /* all of these in one piece */
  size_t sum_count;
  /* Components whose importance is kept position by position: of each site those in which it varies most. */
  size_t *shown, shown_count;        /* their numbers among those of all sites */
  int64_t samples;                   /* the first ones of the text */
  double *shown_values, *shown_text; /* [shown_count, samples, seq], [samples, seq]; the text is first in memory */
} ad_findings;

/* Collective. `out` is released also after a failure. */
ad_status ad_findings_collect(ad_decomposition *d, const ad_forward *forward, ad_findings *out) AD_CHECKED;
void ad_findings_release(ad_findings *findings);

/* Over the positions, of one of AD_PER_COMPONENT. */
double ad_findings_mean(const ad_findings *findings, size_t component, int of);
/* The components of a site of which `of` says most, and more than 0, the most first; returns how many, at most `most`.
 */
size_t ad_findings_most(const ad_findings *findings, size_t site,
                        double (*of)(const ad_findings *findings, size_t component), size_t most, size_t *out);

#endif
